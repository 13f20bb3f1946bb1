"""Drafters that are refused, with a message that names the flag and what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.eagle import write_head
from support.engine_driver import make_engine
from support.loading import load
from support.windows import request, run
from torch import Tensor

from text_generation_server.config.asked_drafter import asked_drafter, check_drafter
from text_generation_server.config.drafter import read_drafter_config
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.server import HubConfig
from text_generation_server.engine.options import EngineOptions
from text_generation_server.errors import ConfigurationError, EngineError, ModelFilesError
from text_generation_server.hub_drafter import find_drafter, prepare_drafter

LAYERS = (1, 2, 4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, num_hidden_layers=4)


def change(folder: Path, **says: Any) -> None:
    """Writes other values into the configuration; None takes a key out of it."""
    config = {**json.loads((folder / "config.json").read_text()), **says}
    (folder / "config.json").write_text(json.dumps({key: each for key, each in config.items() if each is not None}))


def alter(folder: Path, with_tensors: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    with_tensors(tensors)
    save_file(tensors, folder / "model.safetensors")


WRONG_CONFIG: list[tuple[dict[str, Any], str]] = [
    (
        {"hidden_size": 32},
        "have 32 elements, and those of LlamaForCausalLM 64: `model` of --speculative-config names a drafter",
    ),
    (
        {"vocab_size": 400},
        "`vocab_size` is 400, and LlamaForCausalLM has 384 ids: `model` of --speculative-config names",
    ),
    ({"draft_vocab_size": 400}, "`draft_vocab_size` must be an integer of at most 384"),
    (
        {"draft_vocab_size": None, "architectures": ["LlamaForCausalLM"]},
        "`model` of --speculative-config must name an EAGLE-3 head",
    ),
    (
        {"eagle_config": {"use_aux_hidden_state": False}},
        "`use_aux_hidden_state` must be true: `model` of --speculative-config reads EAGLE-3",
    ),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}}, "before layer 5, and LlamaForCausalLM has 4"),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}}, "the hidden states before a layer twice"),
    (
        {"eagle_config": None},
        "has no `eagle_aux_hidden_state_layer_ids`, and the usual ones .* do not fit: it reads the hidden states "
        "before a layer twice; add those with which it was trained, or let `model` of --speculative",
    ),
    (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}},
        r"`eagle_aux_hidden_state_layer_ids` must be the numbers of the layers that the head reads; .* not \[\]",
    ),
    (
        {"rope_scaling": {"rope_type": "odd", "factor": 2.0}},
        r"config.json: `rope_scaling` in config.json asks for 'odd'; .*: `model` of --speculative-config names a "
        "head with another rotary embedding; name another drafter",
    ),
    (
        {"num_hidden_layers": 2},
        "`num_hidden_layers` must be 1: `model` of --speculative-config reads heads of one layer",
    ),
    ({"mask_token_id": 7}, "`mask_token_id` says that it drafts all tokens at once"),
    ({"quantization_config": {}}, "the drafter is quantised: `model` of --speculative-config needs 16 bits"),
    (
        {"speculators_model_type": "dflash"},
        "`speculators_model_type` must be 'eagle3', the kind that `model` of --speculative-config reads",
    ),
    ({"hidden_act": "tanh"}, "`hidden_act` must be one of silu"),
    ({"norm_before_fc": True, "fc_norm": True}, "`fc_norm` must be false where `norm_before_fc` is true"),
    ({"layer_types": ["sliding_attention"]}, "`layer_types` must be"),
]


@pytest.mark.parametrize(("says", "message"), WRONG_CONFIG)
def test_configurations(target: Path, tmp_path: Path, says: dict[str, Any], message: str) -> None:
    head = write_head(tmp_path, target, LAYERS)
    change(head, **says)
    with pytest.raises(ConfigurationError, match=message):
        load(target, drafter=head)


def test_the_method_is_that_of_what_the_folder_holds(target: Path, tmp_path: Path) -> None:
    head, model = write_head(tmp_path, target, LAYERS), read_model_config(target)
    assert read_drafter_config(head, model, "eagle3") == read_drafter_config(head, model)
    with pytest.raises(
        ConfigurationError,
        match=r"config.json: `method` of --speculative-config is medusa, and `model` of --speculative-config names an "
        "EAGLE-3 head: set `method` to eagle3, or leave it out, or let `model` name Medusa heads",
    ):
        read_drafter_config(head, model, "medusa")


def test_a_head_of_another_architecture(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path, target, LAYERS, "speculators")
    change(head, speculators_config={"verifier": {"architectures": ["Qwen3ForCausalLM"]}})
    with pytest.raises(ConfigurationError, match="verifier is a Qwen3ForCausalLM, and the model a LlamaForC"):
        load(target, drafter=head)
    change(head, speculators_config={"verifier": {"architectures": ["LlamaForCausalLM"]}})
    load(target, drafter=head)


WRONG_TENSORS: list[tuple[Callable[[dict[str, Tensor]], object], str]] = [
    (lambda t: t.pop("fc.weight"), "has no tensor `fc.weight`, which `model` of --speculative-config needs"),
    (lambda t: t.update({"fc.weight": torch.zeros(64, 64)}), r"shape \[64, 64\], but config.json asks for \[64, 192\]"),
    (
        lambda t: t.update(more=torch.zeros(1)),
        "what `model` of --speculative-config reads has no `more`: name a drafter in one",
    ),
    (
        lambda t: t.update({"norm.weight": torch.zeros(64, dtype=torch.int8)}),
        "type int8; only float32, float16",
    ),
    (lambda t: t["norm.weight"].fill_(torch.nan), "tensor `norm.weight` of `model` of --speculative-config holds NaN"),
    (lambda t: t.pop("d2t"), "no tensor `d2t`, which says which ids these are"),
    (lambda t: t["d2t"].fill_(300), "tensor `d2t` names ids beyond the 384"),
    (lambda t: t["t2d"].fill_(1), "`d2t` and `t2d` name different ids"),
]


@pytest.mark.parametrize(("with_tensors", "message"), WRONG_TENSORS)
def test_tensors(
    target: Path, tmp_path: Path, with_tensors: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    head = write_head(tmp_path, target, LAYERS)
    alter(head, with_tensors)
    with pytest.raises(ModelFilesError, match=message):
        load(target, drafter=head)


def test_folders_without_a_head(target: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelFilesError,
        match=r"no config\.json: `model` of --speculative-config must name a folder with an EAGLE-3 head",
    ):
        load(target, drafter=tmp_path)
    head = write_head(tmp_path, target, LAYERS)
    (head / "model.safetensors").unlink()
    with pytest.raises(ModelFilesError, match=r"neither \*.safetensors nor \*.bin: fetch all files of the drafter"):
        load(target, drafter=head)
    (head / "model.safetensors").mkdir()
    with pytest.raises(ModelFilesError, match="is not a regular file: `model` of --speculative-config must name"):
        load(target, drafter=head)
    (head / "model.safetensors").rmdir()
    torch.save({"fc.weight": print}, head / "pytorch_model.bin")
    with pytest.raises(ModelFilesError, match="is damaged, or holds more than tensors, and is not loaded"):
        load(target, drafter=head)


def test_a_pickle_of_tensors_is_read(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path, target, LAYERS)
    engine = make_engine(load(target, drafter=head), options=EngineOptions(speculate=3))
    expected = run(engine, [request(0, [5, 6, 7])], 4)
    torch.save(load_file(head / "model.safetensors"), head / "pytorch_model.bin")
    (head / "model.safetensors").unlink()
    engine = make_engine(load(target, drafter=head), options=EngineOptions(speculate=3))
    found = run(engine, [request(0, [5, 6, 7])], 4)
    assert (found.ids, found.steps) == (expected.ids, expected.steps)


def test_flags() -> None:
    with pytest.raises(ConfigurationError, match="--drafter drafts nothing without --speculate N"):
        check_drafter(asked_drafter("head", None), 0)
    with pytest.raises(ConfigurationError, match="--drafter-revision names a revision of --drafter, which is not"):
        asked_drafter(None, "main")
    with pytest.raises(ConfigurationError, match="--drafter-method says what --drafter is, which is not given"):
        asked_drafter(None, None, "mtp")
    assert asked_drafter(None, None) is None


def test_names_that_are_no_drafter(tmp_path: Path) -> None:
    for name in (str(tmp_path / "missing"), "./missing"):
        for find in (find_drafter, prepare_drafter):
            asked = asked_drafter(name, None)
            assert asked is not None
            with pytest.raises(
                EngineError,
                match=f"`model` of --speculative-config {name} is no folder on this machine, and no name on",
            ):
                find(asked, HubConfig())
    asked = asked_drafter("nobody/nothing", None)
    assert asked is not None
    with pytest.raises(
        ModelFilesError, match="`model` of --speculative-config nobody/nothing is neither a folder nor in the hub cache"
    ):
        find_drafter(asked, HubConfig(cache_dir=tmp_path))


def test_a_drafter_of_the_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_drafter("nobody/nothing", None)
    assert asked is not None

    def unreachable(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ModelFilesError, match="cannot be reached; check `model` of --speculative-config, the current"):
        prepare_drafter(asked, HubConfig(cache_dir=tmp_path), pause=lambda _: None)


def test_a_model_without_such_layers_is_refused_by_its_method(target: Path) -> None:
    with pytest.raises(ConfigurationError, match="says nothing of layers for multi-token prediction, which `method`"):
        read_drafter_config(target, read_model_config(target), "mtp")

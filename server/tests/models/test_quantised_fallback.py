"""Quantised checkpoints of models that run through their class: beside that class with the weights that codes stand
for, or beside what compressed-tensors says that 8-bit inputs compute.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.comparing import assert_generations_are_equal, assert_logits_are_equal
from support.compressed import compress_folder, preset, reference, set_quantisation
from support.eight_bit import quantise_folder
from support.fallback_cases import FALLBACK_CASES
from support.families import PROMPTS, Case, made, model_of, write
from support.family_cases import CASES as FAMILIES
from support.generating import warm_engine
from support.loading import load
from support.packed_files import CASES, State, write_packed
from support.probabilities import log_probabilities
from support.ranks import results
from support.thread_ranks import thread_groups, together
from transformers import AutoModelForCausalLM, HeliumForCausalLM, PreTrainedModel

from text_generation_server.errors import ModelFilesError, UnsupportedModel
from text_generation_server.models.fallback.model import FallbackModel

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
"""On two shards, groups of 64 are divided."""
MODELS: dict[str, Case] = {
    name: replace(FALLBACK_CASES[name], values={**FALLBACK_CASES[name].values, **SIZES, **more})
    for name, more in {
        "arcee": {},
        "helium": {"head_dim": 32},
        "olmoe": {"intermediate_size": 128},
        "dots1": {"moe_intermediate_size": 128},
    }.items()
}
"""A plain network, a gated one, experts alone, and experts beside a shared network."""
EIGHT_BIT = {
    "tensor": "fp8 of matrices",
    "channel": "fbgemm",
    "block": "fp8 of blocks",
}
"""How tools store weights of which compressed-tensors has the strategy by this name."""


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a model with 16 bits, written once."""
    root = tmp_path_factory.mktemp("plain")

    @cache
    def folder(name: str) -> Path:
        write(MODELS[name], made(MODELS[name]), root / name)
        return root / name

    return folder


@pytest.fixture
def plain(name: str, folder_of: Callable[[str], Path]) -> Path:
    return folder_of(name)


def class_with(folder: Path, meant: State, out: Path) -> PreTrainedModel:
    """The class of the model in `folder`, with other weights of the same names."""
    out.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in meant.items()}, out / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(config))
    return AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()


def assert_is_the_class(
    name: str, folder: Path, meant: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> None:
    """Logits of all prompts together; greedy ids alone, in a batch, in chunks and after pauses; and two shards."""
    expected = class_with(folder, meant, tmp_path / "meant")
    model = load(folder, **how)
    assert isinstance(model, FallbackModel)
    assert_logits_are_equal(MODELS[name], expected, model)
    assert_generations_are_equal(MODELS[name], expected, warm_engine(model, monkeypatch))
    whole = results(load(folder, **how), PROMPTS[3:], 2)
    models = [load(folder, group=group, **how) for group in thread_groups(2)]
    for logits, ids in together([partial(results, each, PROMPTS[3:], 2) for each in models]):
        torch.testing.assert_close(logits, whole[0], atol=5e-4, rtol=5e-4)
        assert ids == whole[1]


@pytest.mark.parametrize(
    "kind",
    [
        "gptq",
        "gptq, an order for each",
        "gptq_v2, 8 bits, head too",
        "gptq, exceptions",
        "awq",
        "compressed-tensors, w4a16, asymmetric",
        "compressed-tensors, mxfp4",
        "compressed-tensors, mxfp8",
        "bitsandbytes, nf4",
        "bitsandbytes, int8",
    ],
)
def test_codes_in_groups_compute_what_they_stand_for(
    name: str, plain: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = write_packed(plain, tmp_path / "packed", CASES[kind])
    assert_is_the_class(name, tmp_path / "packed", meant, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("helium", "compressed-tensors, nvfp4"),
        ("helium", "modelopt, nvfp4"),
        ("helium", "modelopt, mixed"),
        ("olmoe", "modelopt, nvfp4"),
        ("dots1", "compressed-tensors, nvfp4"),
    ],
)
def test_floats_of_4_bits_compute_what_they_stand_for(
    folder_of: Callable[[str], Path], name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = write_packed(folder_of(name), tmp_path / "packed", CASES[kind])
    assert_is_the_class(name, tmp_path / "packed", meant, tmp_path, monkeypatch)


@pytest.mark.parametrize("strategy", EIGHT_BIT)
def test_float8_weights_compute_what_they_stand_for(
    name: str, plain: Path, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = quantise_folder(plain, tmp_path / "made", EIGHT_BIT[strategy])
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": [128, 128]}
    groups = {"config_groups": {"a": {"targets": ["Linear"], "weights": weights}}}
    set_quantisation(tmp_path / "made", {"quant_method": "compressed-tensors", "ignore": ["lm_head"], **groups})
    assert_is_the_class(name, tmp_path / "made", meant, tmp_path, monkeypatch)


def of_two_shards(folder: Path, **how: Any) -> list[torch.Tensor]:
    """Log-probabilities of each. A class is built by one thread at a time."""
    groups = thread_groups(2)
    models = [load(folder, group=group, **how) for group in groups]
    return together([partial(log_probabilities, *pair, PROMPTS) for pair in zip(models, groups, strict=True)])


@pytest.mark.parametrize("kind", ["FP8_DYNAMIC", "FP8", "FP8_BLOCK", "W8A8"])
@pytest.mark.parametrize("name", ["helium"])
def test_inputs_of_8_bits_are_rounded_as_the_library_rounds_them(plain: Path, kind: str, tmp_path: Path) -> None:
    schemes = {"_proj": preset(kind)}
    folder = compress_folder(plain, tmp_path / "made", schemes)
    said = reference(AutoModelForCausalLM.from_pretrained(plain, attn_implementation="eager"), folder, schemes)
    with torch.inference_mode():
        expected = torch.cat([said(torch.tensor([ids])).logits[0] for ids in PROMPTS]).log_softmax(-1)
    torch.testing.assert_close(log_probabilities(load(folder), prompts=PROMPTS), expected, atol=1e-4, rtol=1e-4)
    first, second = of_two_shards(folder)
    assert torch.equal(first, second)
    # Each rank measures the scales of its own part of the inputs.
    assert (first - expected).norm() < 0.15 * (expected - expected.mean()).norm()


@pytest.mark.parametrize("asked", ["fp8", "w8a8", "eetq", "bitsandbytes-nf4"])
def test_16_bits_are_quantised_while_they_are_read(name: str, plain: Path, asked: str) -> None:
    expected = log_probabilities(load(plain), prompts=PROMPTS)
    deviation = (expected - expected.mean()).norm()
    apart = {"fp8": 0.3, "w8a8": 0.2, "eetq": 0.1, "bitsandbytes-nf4": 0.6}[asked]
    for computed in (
        log_probabilities(load(plain, quantize=asked), prompts=PROMPTS),
        *of_two_shards(plain, quantize=asked),
    ):
        assert 0 < (computed - expected).norm() < apart * deviation


@pytest.mark.parametrize("asked", ["w8a8", "eetq", "bitsandbytes-nf4"])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "mixtral", "qwen2 moe"])
def test_a_known_family_is_quantised_alike_through_its_class(tmp_path: Path, family: str, asked: str) -> None:
    """The same matrices to the same codes: experts too, and neither what chooses among them nor the head."""
    write(FAMILIES[family], model_of(family), tmp_path / "model")
    native, forced = (load(tmp_path / "model", impl=impl, quantize=asked) for impl in ("native", "transformers"))
    expected = log_probabilities(native, prompts=PROMPTS)
    torch.testing.assert_close(log_probabilities(forced, prompts=PROMPTS), expected, atol=2e-4, rtol=2e-4)


def test_codes_take_the_memory_of_codes(name: str, plain: Path, tmp_path: Path) -> None:
    """Matrices of layers and experts alike; embedding, head, norms and choices stand beside them."""
    write_packed(plain, tmp_path / "packed", CASES["gptq"])
    others = sum(each.nbytes for key, each in load_file(plain / "model.safetensors").items() if "_proj" not in key)
    codes, numbers = (held_bytes(load(folder)) - others for folder in (tmp_path / "packed", plain))
    # Kernels read blocks of 256 inputs, of which these matrices have 128; numbers have 32 bits.
    assert 0 < codes < 0.45 * numbers


def held_bytes(model: object) -> int:
    """Of all tensors that a model of a class holds."""
    tensors: dict[int, int] = {}
    visited: set[int] = set()

    def visit(value: Any) -> None:
        if id(value) in visited:
            return
        visited.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for each in value.values():
                visit(each)
        elif isinstance(value, tuple | list):
            for each in value:
                visit(each)
        elif type(value).__module__.startswith(("text_generation", "transformers.models", "torch.nn")):
            visit(getattr(value, "__dict__", {}))

    visit(model)
    return sum(tensors.values())


def test_random_weights_need_the_configuration_alone(name: str, plain: Path, tmp_path: Path) -> None:
    write_packed(plain, tmp_path / "packed", CASES["gptq"])
    (tmp_path / "packed" / "model.safetensors").unlink()
    computed = log_probabilities(load(tmp_path / "packed", dummy=True), prompts=PROMPTS)
    assert computed.isfinite().all()
    assert torch.equal(log_probabilities(load(tmp_path / "packed", dummy=True), prompts=PROMPTS), computed)


def test_modules_of_the_list_of_exceptions_stay_as_they_are(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query and key beside a value with codes: all read one tensor, and the value alone is quantised."""
    skipped = ["q_proj", "model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.k_proj"]
    plain, ends = folder_of("helium"), ("v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    meant = quantise_folder(plain, tmp_path / "made", "fp8 of blocks", ends, modules_to_not_convert=skipped)
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    groups = {"config_groups": {"a": {"targets": ["Linear"], "weights": weights}}}
    ignore = ["lm_head", "re:.*[qk]_proj"]
    set_quantisation(tmp_path / "made", {"quant_method": "compressed-tensors", "ignore": ignore, **groups})
    assert_is_the_class("helium", tmp_path / "made", meant, tmp_path, monkeypatch)


def test_a_matrix_that_the_class_multiplies_itself_has_16_bits(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here one that it wants in float32. The start says so."""
    meant = write_packed(folder_of("helium"), tmp_path / "packed", CASES["gptq"])
    monkeypatch.setattr(HeliumForCausalLM, "_keep_in_fp32_modules_strict", {"v_proj"})
    model = load(tmp_path / "packed")
    (said,) = (record for record in caplog.records if "16 bits" in record.message)
    assert getattr(said, "matrices", ()) == ["model.layers.*.self_attn.v_proj.weight"]
    assert_logits_are_equal(MODELS["helium"], class_with(tmp_path / "packed", meant, tmp_path / "meant"), model)


def test_experts_with_codes_in_one_tensor_are_refused_with_a_remedy(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    quantise_folder(folder_of("olmoe"), tmp_path / "made", "fp8 of matrices")
    path = tmp_path / "made" / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.layers.0.mlp.experts.gate_up_proj_scale_inv": torch.ones(6, 2, 1)}, path)
    with pytest.raises(UnsupportedModel, match=r"gate_up_proj_scale_inv` .* 'fp8' .* one tensor .* --quantize fp8"):
        load(tmp_path / "made")


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("model.layers.1.self_attn.q_proj.weight_scale_inv", r"`model\.layers\.1\.self_attn\.q_proj\.weight_scale`"),
        ("model.layers.1.self_attn.q_proj.weight", r"`model\.layers\.1\.self_attn\.q_proj\.weight`"),
    ],
)
def test_a_tensor_that_is_missing_is_named(
    folder_of: Callable[[str], Path], tmp_path: Path, lost: str, message: str
) -> None:
    quantise_folder(folder_of("helium"), tmp_path / "made", "fp8 of blocks")
    path = tmp_path / "made" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != lost}, path)
    with pytest.raises(ModelFilesError, match=message):
        load(tmp_path / "made")


def test_an_expert_that_is_missing_is_told(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    write_packed(folder_of("olmoe"), tmp_path / "packed", CASES["gptq"])
    path = tmp_path / "packed" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "experts.5.up_proj" not in name}, path)
    with pytest.raises(ModelFilesError, match=r"experts\.0\.up_proj\.weight` and those like it are 5 tensors; .* 6"):
        load(tmp_path / "packed")

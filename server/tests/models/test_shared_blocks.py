"""Zamba 2, whose layers share blocks: how files hold them, what they take, and what adapters change."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support.adapted import linears_of
from support.adapters_on_device import on_device
from support.driver import Driver
from support.families import PROMPTS, Case, State, logits_of, made, model_of, write
from support.family_cases import CASES
from support.loading import load
from support.packed_files import CASES as PACKED
from support.packed_files import write_meant, write_packed
from support.probabilities import log_probabilities, of_groups
from support.recurrent_cases import ZAMBA_2, softened
from support.thread_ranks import ThreadGroup, thread_groups, together

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.sizes import dense_macs, served_bytes, weight_bytes
from text_generation_server.errors import AdapterError
from text_generation_server.explain.matrices import Matrix, matrices_of
from text_generation_server.layers.weights import Dense
from text_generation_server.models import CausalLM

NAME = "zamba 2"
BLOCK = "model.layers.{}.shared_transformer."
"""Layers 0 and 3 share a block, and layer 2 has one of its own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("zamba")
    write(CASES[NAME], model_of(NAME), made)
    return made


def logits(model: CausalLM, group: ThreadGroup | None = None) -> torch.Tensor:
    """Of every token of every prompt."""
    driver = Driver(model, max_tokens=32, group=group)
    return driver.prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)}, all_logits=True)


def copied(folder: Path, out: Path, change: Callable[[State], State], **values: object) -> Path:
    """The same model with other tensors, and other values in its configuration."""
    out.mkdir()
    save_file(change(load_file(folder / "model.safetensors")), out / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, **values}))
    return out


def _under_other_layers(state: State) -> State:
    """As Transformers 4 may write them: each tensor under any of the layers that share it."""
    first, last = BLOCK.format(0), BLOCK.format(3)
    names = sorted(name for name in state if name.startswith(first))
    return {(name.replace(first, last) if name in names[::2] else name): tensor for name, tensor in state.items()}


def _under_all_layers(state: State) -> State:
    first, last = BLOCK.format(0), BLOCK.format(3)
    return {**state, **{name.replace(first, last): tensor.clone() for name, tensor in state.items() if first in name}}


@pytest.mark.parametrize("change", [_under_other_layers, _under_all_layers])
def test_a_block_is_found_under_any_of_its_layers(
    change: Callable[[State], State], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(load(folder))
    caplog.clear()
    assert torch.equal(logits(load(copied(folder, tmp_path / "made", change))), expected)
    assert "not used" not in caplog.text


def test_a_block_is_loaded_and_counted_once(folder: Path) -> None:
    """And its computation with each call."""
    config, stored = ModelConfig.from_folder(folder), load_file(folder / "model.safetensors")
    matrices = {name: tensor.numel() for name, tensor in stored.items() if tensor.dim() == 2}
    assert weight_bytes(config, 2) == 2 * sum(matrices.values())
    assert served_bytes(folder, config, 4) == (folder / "model.safetensors").stat().st_size // 4 * 4
    linears = [each for each in linears_of(load(folder)) if isinstance(each, Dense) and each.site is not None]
    places = {each.site.modules[0]: each.weight.data_ptr() for each in linears if each.site is not None}
    first, other, again_first = (places[f"{BLOCK.format(layer)}self_attn.o_proj"] for layer in (0, 2, 3))
    assert first == again_first != other
    again = sum(
        size for name, size in matrices.items() if name.startswith(BLOCK.format(0)) and "adapter_list" not in name
    )
    embedding = matrices["model.embed_tokens.weight"]
    assert dense_macs(config) == sum(matrices.values()) - embedding + again
    parts = [each for each in matrices_of(config, torch.float32, 1) if isinstance(each.part, Matrix)]
    counts = {each.part.name: each.times for each in parts if isinstance(each.part, Matrix)}
    assert (counts["attention qkv"], counts["feed-forward gate_up"]) == (2, 2)
    assert (counts["call of a shared block out"], counts["call of a shared block qkv_down"]) == (3, 3)


def test_quantised_matrices_of_a_block_are_counted_once(folder: Path) -> None:
    config, stored = ModelConfig.from_folder(folder).quantised("fp8"), load_file(folder / "model.safetensors")
    matrices = {name: tensor.numel() for name, tensor in stored.items() if tensor.dim() == 2}
    assert weight_bytes(config, 2) == sum(matrices.values()) + matrices["model.embed_tokens.weight"]


def test_long_contexts_have_another_base_and_more_positions(tmp_path: Path) -> None:
    """As in the code of their authors, and in Transformers 4; 5.24 reads the number of positions alone."""
    size = 16
    rope = {"rope_type": "default", "rope_theta": 10_000 * 8 ** (size / (size - 2))}
    case = Case("Zamba 2", "zamba2", {**ZAMBA_2, "rope_parameters": rope}, prepare=softened)
    write(case, reference := made(case), tmp_path)
    path = tmp_path / "config.json"
    raw = {**json.loads(path.read_text()), "rope_parameters": {"rope_type": "default", "rope_theta": 10_000}}
    path.write_text(json.dumps({**raw, "use_long_context": True}))
    expected = torch.cat([logits_of(case, reference, prompt) for prompt in PROMPTS])
    torch.testing.assert_close(logits(load(tmp_path)), expected, atol=2e-4, rtol=2e-4)
    assert ModelConfig.from_folder(tmp_path).max_context_length == 16384


def test_calls_without_matrices_of_low_rank(folder: Path, tmp_path: Path) -> None:
    """What the class computes where they are zero."""

    def without(state: State) -> State:
        return {name: tensor for name, tensor in state.items() if "adapter_list" not in name}

    keys = {"use_shared_attention_adapter": False, "use_shared_mlp_adapter": False}
    found = logits(load(copied(folder, tmp_path / "made", without, **keys)))

    def zeroed(state: State) -> State:
        return {name: torch.zeros_like(each) if "adapter_list" in name else each for name, each in state.items()}

    zero = copied(folder, tmp_path / "zero", zeroed)
    assert torch.equal(found, logits(load(zero)))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["bitsandbytes, nf4", "compressed-tensors, w8a16"])
def test_stored_codes_are_read(name: str, ranks: int, tmp_path: Path) -> None:
    """Of blocks and of matrices of low rank too."""
    # Blocks of 64 inputs have a scale.
    sizes = {"adapter_rank": 64, "hidden_size": 64, "intermediate_size": 128}
    case = Case("Zamba 2", "zamba2", {**ZAMBA_2, **sizes}, prepare=softened)
    write(case, made(case), tmp_path / "plain")
    meant = write_packed(tmp_path / "plain", tmp_path / "packed", PACKED[name])
    write_meant(tmp_path / "plain", tmp_path / "meant", meant)
    expected = log_probabilities(load(tmp_path / "meant"), prompts=PROMPTS)
    assert (log_probabilities(load(tmp_path / "plain"), prompts=PROMPTS) - expected).abs().max() > 1e-2
    for each in of_groups(tmp_path / "packed", thread_groups(ranks), PROMPTS):
        torch.testing.assert_close(each, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("asked", ["fp8", "w8a8", "eetq"])
def test_16_bits_are_quantised_while_they_are_read(asked: str, folder: Path) -> None:
    """After one token, over more of which random layers make much of an error."""
    expected = log_probabilities(load(folder), prompts=PROMPTS[:1])
    for each in of_groups(folder, thread_groups(2), PROMPTS[:1], quantize=asked):
        assert 0 < (each - expected).abs().mean() < 0.5


def _trained(folder: Path, **options: object) -> torch.Tensor:
    """Writes an adapter, and returns what PEFT computes with it."""
    reference = made(CASES[NAME])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(reference, LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", **options)).eval()
        generator = torch.Generator().manual_seed(5)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += torch.empty_like(parameter).normal_(std=0.1, generator=generator)
        model.save_pretrained(folder)
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([ids]), use_cache=False).logits[0] for ids in PROMPTS])


MATRICES = ["q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj", "linear", "in_proj", "out_proj"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_call_has_adapters_of_its_own(ranks: int, folder: Path, tmp_path: Path) -> None:
    expected = _trained(tmp_path, target_modules=MATRICES)

    def served(group: ThreadGroup) -> torch.Tensor:
        model = load(folder, group=group)
        names = {str(i): prompt for i, prompt in enumerate(PROMPTS)}
        checker, used = on_device(model, [tmp_path]), dict.fromkeys(names, 1)
        driver = Driver(model, max_tokens=32, group=group, adapters=used, checker=checker)
        return driver.prefill(names, all_logits=True)

    for found in together([partial(served, group) for group in thread_groups(ranks)]):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (logits(load(folder)) - expected).abs().max() > 1e-2


def test_what_several_layers_share_is_not_merged(folder: Path, tmp_path: Path) -> None:
    """And all else is."""
    _trained(tmp_path / "shared", target_modules=["o_proj"], layers_to_transform=[0])
    with pytest.raises(AdapterError, match="for one of the layers that share it: it cannot be merged"):
        load(folder, merge_adapter=tmp_path / "shared")
    own = r".*\.(linear|in_proj|3\.shared_transformer\.self_attn\.linear_q_adapter_list\.2\.[01])"
    expected = _trained(tmp_path / "own", target_modules=own)
    found = logits(load(folder, merge_adapter=tmp_path / "own"))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_adapters_of_what_a_call_adds_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    _trained(tmp_path, target_modules=r".*\.0\.shared_transformer\.self_attn\.linear_q_adapter_list\.0\.0")
    adapters = load(folder).adapters
    assert adapters is not None
    with pytest.raises(AdapterError, match=r"changes `model\.layers\.0\..*list\.0\.0\.weight`, which requests cannot"):
        adapters.read("it", tmp_path, untrusted=False)

"""GPT-2 quantised: tools turn its matrices, which are stored transposed, before they write codes of them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from safetensors.torch import load_file, save_file
from support.compressed import set_quantisation
from support.families import PROMPTS, made, write
from support.family_cases import CASES as FAMILIES
from support.loading import load
from support.packed_files import CASES, ORDERED, PackedCase
from support.probabilities import log_probabilities, of_groups
from support.thread_ranks import thread_groups
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from text_generation_server.config.model import ModelConfig
from text_generation_server.errors import UnsupportedModel

MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """With inputs that are multiples of all groups."""
    case = FAMILIES["gpt2"]
    case = replace(case, values={**case.values, "n_embd": 64})
    write(case, made(case), tmp_path / "plain")
    return tmp_path / "plain"


def assert_means(made_by_tool: Path, plain: Path, meant: dict[str, Tensor]) -> None:
    """Alone and on two shards. `meant` has matrices [outputs, inputs]."""
    state = load_file(plain / "model.safetensors")
    assert meant.keys() == {name for name in state if name.endswith(MATRICES)}
    shutil.copytree(plain, plain.parent / "meant")
    turned = {name: weight.t().contiguous().float() for name, weight in meant.items()}
    save_file(state | turned, plain.parent / "meant" / "model.safetensors")
    expected = log_probabilities(load(plain.parent / "meant"), prompts=PROMPTS)
    assert not torch.equal(expected, log_probabilities(load(plain), prompts=PROMPTS))
    alone, of_ranks = load(made_by_tool), of_groups(made_by_tool, thread_groups(2), PROMPTS)
    for computed in (log_probabilities(alone, prompts=PROMPTS), *of_ranks):
        torch.testing.assert_close(computed, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    "keys", [{"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {"load_in_8bit": True}], ids=str
)
def test_what_transformers_writes_with_bitsandbytes(plain: Path, keys: dict[str, Any]) -> None:
    config = BitsAndBytesConfig(**keys)
    quantised = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, dtype=torch.float32)
    quantised.save_pretrained(plain.parent / "made")
    weights = {f"{name}.weight": _stands_for(module) for name, module in quantised.named_modules()}
    meant = {name: weight for name, weight in weights.items() if weight is not None}
    assert_means(plain.parent / "made", plain, meant)


def _stands_for(module: Any) -> Tensor | None:
    """The weight of a module of bitsandbytes."""
    weight = getattr(module, "weight", None)
    if getattr(weight, "quant_state", None) is not None:
        return dequantize_4bit(weight.data, weight.quant_state)
    if getattr(weight, "SCB", None) is not None:
        return weight.data.float() * (weight.SCB.float() / 127)[:, None]
    return None


@pytest.mark.parametrize("case", [CASES["gptq"], ORDERED], ids=["in order", "an order for each"])
def test_gptq(plain: Path, case: PackedCase) -> None:
    shutil.copytree(plain, plain.parent / "made")
    state = load_file(plain / "model.safetensors")
    meant = dict[str, Tensor]()
    for name in [name for name in state if name.endswith(MATRICES)]:
        module, packed = name.removesuffix(".weight"), case.pack(name, state.pop(name).t())
        assert packed is not None
        state |= {f"{module}.{suffix}": tensor.contiguous() for suffix, tensor in packed[0].items()}
        meant[name] = packed[1]
    save_file(state, plain.parent / "made" / "model.safetensors")
    set_quantisation(plain.parent / "made", case.config)
    assert_means(plain.parent / "made", plain, meant)


def test_others_are_refused(plain: Path) -> None:
    set_quantisation(plain, CASES["awq"].config)
    with pytest.raises(UnsupportedModel, match="quantised by 'awq' are not supported, since their matrices are trans"):
        ModelConfig.from_folder(plain)

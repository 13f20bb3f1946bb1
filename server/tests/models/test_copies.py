"""Weight-only quantised models that keep 16-bit copies of their matrices."""

import json
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_llama
from support.families import model_of, write
from support.family_cases import CASES as FAMILIES
from support.loading import load
from support.oracle import oracle
from support.packed_files import CASES, ORDERED, write_packed
from support.probabilities import log_probabilities

import text_generation_kernels as kernels
from text_generation_server.config.copies import copied_bytes
from text_generation_server.config.implementation import read_model_config
from text_generation_server.config.model import ModelConfig

SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 6, "num_key_value_heads": 2}
LONG = [list(range(20, 60)), list(range(50, 90))]
"""Together more tokens than codes are read for."""
SHORT = [[5, 9, 17, 23]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, **SIZES, initializer_range=0.1)


def config_of(folder: Path, quantize: str | None = None) -> ModelConfig:
    config = read_model_config(folder, "auto", quantize)
    assert isinstance(config, ModelConfig)
    return config


@pytest.mark.parametrize(
    "name",
    [
        "gptq",
        "gptq, one order of inputs",
        "gptq, an order for each",
        "awq",
        "compressed-tensors, w8a16",
        "bitsandbytes, nf4",
    ],
)
def test_many_tokens_are_multiplied_by_copies_and_few_by_codes(
    plain: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = write_packed(plain, tmp_path / "packed", CASES[name])
    reference = oracle(plain)
    reference.load_state_dict(meant)
    model = load(tmp_path / "packed")
    codes_alone = log_probabilities(model, prompts=LONG)
    model.copies.make()

    few = log_probabilities(model, prompts=SHORT)
    read_for: list[int] = []
    by_codes = kernels.weight_only_linear
    monkeypatch.setattr(kernels, "weight_only_linear", lambda x, *rest: read_for.append(len(x)) or by_codes(x, *rest))
    assert torch.equal(log_probabilities(model, prompts=SHORT), few)
    assert set(read_for) == {4}
    many = log_probabilities(model, prompts=LONG)
    assert set(read_for) == {4}

    torch.testing.assert_close(many, codes_alone, atol=1e-4, rtol=1e-4)
    with torch.inference_mode():
        expected = torch.cat([reference(torch.tensor([ids])).logits[0] for ids in LONG]).log_softmax(-1)
    torch.testing.assert_close(many, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gptq", "gptq, exceptions", "awq", "compressed-tensors, w8a16"])
def test_the_configuration_tells_what_copies_take(plain: Path, tmp_path: Path, name: str) -> None:
    write_packed(plain, tmp_path / "packed", CASES[name])
    model = load(tmp_path / "packed")
    assert model.copies.nbytes > 0
    assert copied_bytes(config_of(tmp_path / "packed"), 4) == pytest.approx(model.copies.nbytes, rel=0.1)


def test_matrices_that_are_quantised_while_they_are_read_can_have_copies(plain: Path) -> None:
    layer = sum(matrix.numel() for name, matrix in oracle(plain).named_parameters() if name.endswith("proj.weight"))
    for quantize in ("eetq", "bitsandbytes-nf4"):
        assert load(plain, quantize=quantize).copies.nbytes == 4 * layer
        assert copied_bytes(config_of(plain, quantize), 4) == 4 * layer
    # Products of 8-bit inputs need none, and neither do matrices with all bits.
    assert load(plain, quantize="vllm-fp8w8a8").copies.nbytes == load(plain).copies.nbytes == 0


def test_experts_have_none(tmp_path: Path) -> None:
    write(FAMILIES["qwen2 moe"], model_of("qwen2 moe"), tmp_path / "plain")
    write_packed(tmp_path / "plain", tmp_path / "packed", ORDERED)
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    model = load(tmp_path / "packed")
    heads = config["num_attention_heads"] + 2 * config["num_key_value_heads"] + config["num_attention_heads"]
    attention = heads * config["hidden_size"] // config["num_attention_heads"] * config["hidden_size"]
    dense = len(config["mlp_only_layers"]) * 3 * config["hidden_size"] * config["intermediate_size"]
    assert model.copies.nbytes == 4 * (config["num_hidden_layers"] * attention + dense)

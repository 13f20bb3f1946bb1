"""Experts of quantised checkpoints stay packed and stand for what the libraries say, on one rank and on two."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.eight_bit import FORMATS, quantise_folder
from support.families import made, model_of, write
from support.family_cases import CASES as CASES_OF_FAMILIES
from support.packed_files import CASES, PackedCase, gptq_pack, without_head, write_packed
from support.thread_ranks import thread_groups
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.spec import MoeSpec
from text_generation_server.layers.weights import Checkpoint, MoeWeights, load_moe
from text_generation_server.weights import SafetensorsSource

EXPERTS, HIDDEN, INNER = 3, 64, 192
LAYER = "model.layers.0.block_sparse_moe"
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "num_local_experts": EXPERTS,
    "vocab_size": 16,
}


def _folder(path: Path, architecture: str, tensors: dict[str, Tensor], **more: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**CONFIG, "architectures": [architecture], **more}))
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {f"{LAYER}.gate.weight": torch.randn(EXPERTS, HIDDEN)}
    for expert in range(EXPERTS):
        for name, shape in (("w1", (INNER, HIDDEN)), ("w2", (HIDDEN, INNER)), ("w3", (INNER, HIDDEN))):
            tensors[f"{LAYER}.experts.{expert}.{name}.weight"] = torch.randn(shape) / 8
    return _folder(tmp_path / "plain", "MixtralForCausalLM", tensors)


def _loaded(folder: Path, ranks: int, quantize: str | None = None, whole: bool = False) -> list[MoeWeights]:
    """Of each rank: a part of every expert, or whole experts."""
    config = ModelConfig.from_folder(folder).quantised(quantize)
    spec = config.decoder.layers[0].ffn
    assert isinstance(spec, MoeSpec)
    source = SafetensorsSource(folder, torch.float32, torch.device("cpu"))
    groups = thread_groups(ranks, expert_parallel=whole)
    checkpoints = (Checkpoint.of(source, config.decoder, config.names, group, config.schemes) for group in groups)
    return [load_moe(checkpoint, 0, spec) for checkpoint in checkpoints]


def _whole(ranks: list[MoeWeights], expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gate, up and down of the parts of all ranks that have some of an expert."""
    having = [(each, expert - each.experts.start) for each in ranks if expert in each.experts]
    firsts = [each.gate_up.of(place, each.down.outputs).chunk(2) for each, place in having]
    downs = [each.down.of(place, each.gate_up.outputs // 2) for each, place in having]
    return torch.cat([gate for gate, _ in firsts]), torch.cat([up for _, up in firsts]), torch.cat(downs, dim=1)


def _check(folder: Path, meant: dict[str, Tensor], bits: int) -> None:
    for ranks in (_loaded(folder, 1), _loaded(folder, 2), _loaded(folder, 2, whole=True)):
        assert {each.gate_up.bits for each in ranks} | {each.down.bits for each in ranks} == {bits}
        for expert in range(EXPERTS):
            for name, found in zip(("w1", "w3", "w2"), _whole(ranks, expert), strict=True):
                expected = meant[f"{LAYER}.experts.{expert}.{name}.weight"].float()
                torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("gptq", 4),
        ("gptq, an order for each", 32),
        ("gptq, 3 bits, asymmetric", 4),
        ("awq", 4),
        ("compressed-tensors, w4a16, asymmetric", 4),
        ("compressed-tensors, w8a16", 8),
        ("compressed-tensors, mxfp4", 4),
        ("compressed-tensors, nvfp4", 4),
        ("modelopt, nvfp4", 4),
        ("compressed-tensors, mxfp8", 8),
        ("bitsandbytes, nf4", 4),
        ("bitsandbytes, int8", 8),
    ],
)
def test_few_bits(plain: Path, tmp_path: Path, name: str, bits: int) -> None:
    _check(tmp_path / "packed", write_packed(plain, tmp_path / "packed", CASES[name]), bits)


@pytest.mark.parametrize("name", FORMATS)
def test_8_bits(plain: Path, tmp_path: Path, name: str) -> None:
    meant = quantise_folder(plain, tmp_path / "packed", name, ("w1", "w2", "w3"))
    _check(tmp_path / "packed", meant, 8)


@pytest.mark.parametrize(
    ("expert", "shared", "group", "has_16_bits"),
    [(64, 64, 32, True), (96, 192, 64, False), (64, 160, 32, False)],
    ids=["16 bits", "its second expert begins inside a group", "no multiple of an expert"],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_shared_network_that_cannot_be_as_experts_are_leaves_them_codes(
    tmp_path: Path, ranks: int, expert: int, shared: int, group: int, has_16_bits: bool
) -> None:
    sizes = {"hidden_size": 64, "moe_intermediate_size": expert, "shared_expert_intermediate_size": shared}
    case = CASES_OF_FAMILIES["qwen2 moe"]
    case = replace(case, values={**case.values, **sizes})
    write(case, made(case), tmp_path / "plain")
    kept = [f"shared_expert.{name}_proj" for name in ("gate", "up", "down")] if has_16_bits else []
    packed = PackedCase({**CASES["gptq"].config, "group_size": group}, without_head(gptq_pack(4, group), *kept))
    write_packed(tmp_path / "plain", tmp_path / "packed", packed)
    for found in _loaded(tmp_path / "packed", ranks):
        assert (found.gate_up.bits, found.down.bits) == (4, 4)
        assert found.shared is not None


@pytest.mark.parametrize(("ranks", "whole"), [(1, False), (2, False), (3, False), (2, True)])
def test_mxfp4_of_gpt_oss(tmp_path: Path, ranks: int, whole: bool) -> None:
    """Five blocks of inner elements: ranks have different parts. Scales of the last case are too large for kernels that
    do not look codes up.
    """
    torch.manual_seed(0)
    inner, layer = 160, "model.layers.0.mlp"
    tensors = {f"{layer}.router.weight": torch.randn(EXPERTS, HIDDEN), f"{layer}.router.bias": torch.randn(EXPERTS)}
    meant: dict[str, Tensor] = {}
    for name, outputs, inputs in (("gate_up_proj", 2 * inner, HIDDEN), ("down_proj", HIDDEN, inner)):
        blocks = torch.randint(256, (EXPERTS, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(110, 140 if ranks == 3 else 129, blocks.shape[:3], dtype=torch.uint8)
        tensors |= {f"{layer}.experts.{name}_blocks": blocks, f"{layer}.experts.{name}_scales": scales}
        tensors[f"{layer}.experts.{name}_bias"] = torch.randn(EXPERTS, outputs)
        meant[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).transpose(1, 2).float()
    quantised = {"quantization_config": {"quant_method": "mxfp4"}, "intermediate_size": inner}
    found = _loaded(_folder(tmp_path / "packed", "GptOssForCausalLM", tensors, **quantised), ranks, whole=whole)
    matrices = [matrix for each in found for matrix in (each.gate_up, each.down)]
    assert all(matrix.bits == 4 and matrix.e2m1 == (ranks < 3) for matrix in matrices)
    biases = [each.gate_up.bias.chunk(2, dim=1) for each in found if each.gate_up.bias is not None]
    for place in (0, 1):
        stored = tensors[f"{layer}.experts.gate_up_proj_bias"][:, place::2]
        assert torch.equal(torch.cat([bias[place] for bias in biases], dim=0 if whole else 1), stored)
    for expert in range(EXPERTS):
        gate, up, down = _whole(found, expert)
        assert torch.equal(gate, meant["gate_up_proj"][expert, 0::2])
        assert torch.equal(up, meant["gate_up_proj"][expert, 1::2])
        assert torch.equal(down, meant["down_proj"][expert])


@pytest.mark.parametrize(
    ("asked", "bits", "apart"), [("fp8", 8, 0.04), ("w8a8", 8, 0.01), ("eetq", 8, 0.01), ("bitsandbytes-nf4", 4, 0.12)]
)
@pytest.mark.parametrize("case", ["mixtral", "granite moe", "dbrx", "gpt-oss"])
def test_16_bits_of_every_layout_are_quantised_while_they_are_read(
    tmp_path: Path, case: str, asked: str, bits: int, apart: float
) -> None:
    write(CASES_OF_FAMILIES[case], model_of(case), tmp_path / "plain")
    (plain,) = _loaded(tmp_path / "plain", 1)
    for parts in (_loaded(tmp_path / "plain", 2, asked), _loaded(tmp_path / "plain", 2, asked, whole=True)):
        assert {each.gate_up.bits for each in parts} | {each.down.bits for each in parts} == {bits}
        for expert in range(plain.gate_up.experts):
            for one, other in zip(_whole(parts, expert), _whole([plain], expert), strict=True):
                assert 0 < (one - other).norm() < apart * other.norm()

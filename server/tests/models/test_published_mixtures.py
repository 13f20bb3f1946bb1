"""Mixtures of experts with the configurations that are published, beside the same models with 16 bits."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compressed_matrices import NVFP4, compressed_matrix
from support.eight_bit import row_scales
from support.families import PROMPTS, made, write
from support.family_cases import CASES
from support.loading import load
from support.packed_files import (
    Pack,
    PackedCase,
    awq_pack,
    compressed_pack,
    gptq_pack,
    modelopt_fp4,
    without_head,
    write_meant,
    write_packed,
)
from support.probabilities import log_probabilities, of_groups
from support.published_packs import bfloat16_blocks, half_scales
from support.thread_ranks import thread_groups

SIZES = {"hidden_size": 64, "intermediate_size": 128}
SIZES_OF_SOME = {"moe_intermediate_size": 64, "moe_latent_size": 32, "moe_shared_expert_intermediate_size": 128}
FP4 = {
    "dynamic": False,
    "group_size": 16,
    "num_bits": 4,
    "strategy": "tensor_group",
    "symmetric": True,
    "type": "float",
}
EXPERT = {"moe_intermediate_size": 64}
INT4 = {"actorder": None, "group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"}
FLOATS = {"num_bits": 8, "type": "float", "symmetric": True}
CHANNELS = {**FLOATS, "dynamic": False, "strategy": "channel"}
TOKENS = {**FLOATS, "dynamic": True, "strategy": "token"}


def group(weights: dict[str, Any], inputs: dict[str, Any] | None, *targets: str) -> dict[str, Any]:
    return {"input_activations": inputs, "output_activations": None, "targets": list(targets), "weights": weights}


def experts_alone(pack: Pack) -> Pack:
    return lambda module, weight: pack(module, weight) if ".experts." in module else None


DEEPSEEK: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
KIMI: dict[str, Any] = {
    "config_groups": {"group_0": group(INT4, None, "Linear")},
    "format": "pack-quantized",
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
LLM_COMPRESSOR_FP4: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            **group(FP4, {**FP4, "dynamic": "local"}, "Linear"),
            "format": "nvfp4-pack-quantized",
        }
    },
    "format": "nvfp4-pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
MODELOPT_FP4: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "input_activations": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
            "targets": ["Linear"],
            "weights": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
        }
    },
    "ignore": ["lm_head", "*self_attn*", "*mlp.gate", "*mixer.gate"],
    "producer": {"name": "modelopt", "version": "0.41.0"},
    "quant_algo": "NVFP4",
    "quant_method": "modelopt",
}
MXFP8: dict[str, Any] = {"quant_method": "mxfp8", "weight_block_size": [1, 32]}
MIXTRAL_AWQ: dict[str, Any] = {
    "bits": 4,
    "group_size": 32,
    "modules_to_not_convert": ["gate"],
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
QWEN_GPTQ: dict[str, Any] = {
    "bits": 4,
    "checkpoint_format": "gptq",
    "desc_act": False,
    "dynamic": {"-:.*mlp\\.gate$": {}},
    "group_size": 32,
    "lm_head": False,
    "meta": {"quantizer": ["gptqmodel:4.0.0"]},
    "pack_dtype": "int32",
    "quant_method": "gptq",
    "sym": True,
}
MIXED: dict[str, Any] = {
    "config_groups": {
        "group_0": {**group(CHANNELS, TOKENS, "re:.*self_attn.(q|k|v|o)_proj$"), "format": "float-quantized"},
        "group_1": {**group(INT4, None, "re:.*mlp.experts.*"), "format": "pack-quantized"},
    },
    "format": "mixed-precision",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "_a_proj", "_b_proj", "_with_mqa")


NEMOTRON: dict[str, Any] = {
    "quant_algo": "MIXED_PRECISION",
    "quant_method": "modelopt",
    "quantized_layers": {
        f"backbone.layers.{layer}.mixer.{name}.{way}_proj": algorithm
        for layer in (1, 3)
        for way in ("up", "down")
        for name, algorithm in (
            *((f"experts.{expert}", {"quant_algo": "NVFP4", "group_size": 16}) for expert in range(8)),
            ("shared_experts", {"quant_algo": "MXFP8"}),
        )
    },
}


def _nemotron(module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
    """Its experts as floats of 4 bits, its shared networks of 8."""
    if ".experts." in module:
        return modelopt_fp4(module, weight)
    if ".shared_experts." not in module:
        return None
    matrix = compressed_matrix(weight, 8, 32, symmetric=True, form="mxfp8-quantized")
    return matrix.tensors, matrix.weight


EXACT: dict[str, tuple[str, dict[str, Any], Pack]] = {
    "Kimi-K2 int4": ("kimi k2", KIMI, experts_alone(compressed_pack(4, 32, True))),
    # Its shared network has a gate.
    "Qwen2 MoE int4": ("qwen2 moe", KIMI, experts_alone(compressed_pack(4, 32, True))),
    # Its experts have no gate.
    "Nemotron 3 int4": ("nemotron 3", KIMI, experts_alone(compressed_pack(4, 32, True))),
    "groups of 16": (
        "deepseek v3",
        {**KIMI, "config_groups": {"group_0": group({**INT4, "group_size": 16}, None, "Linear")}},
        experts_alone(compressed_pack(4, 16, True)),
    ),
    "groups of 16 with zeros": (
        "qwen3 moe",
        {**KIMI, "config_groups": {"group_0": group({**INT4, "group_size": 16, "symmetric": False}, None, "Linear")}},
        experts_alone(compressed_pack(4, 16, False)),
    ),
    "Qwen3 MoE NVFP4": ("qwen3 moe", MODELOPT_FP4, experts_alone(modelopt_fp4)),
    "DeepSeek-V3 NVFP4": ("deepseek v3", MODELOPT_FP4, without_head(modelopt_fp4, *ATTENTION)),
    "GLM 4.5 NVFP4": ("glm4 moe", LLM_COMPRESSOR_FP4, without_head(compressed_pack(4, 16, True, NVFP4), *ATTENTION)),
    "GLM 5 NVFP4": ("glm 5", MODELOPT_FP4, experts_alone(modelopt_fp4)),
    # Its experts have no gate, and read a latent state.
    "Nemotron 3 Super NVFP4": ("nemotron 3 latent", NEMOTRON, _nemotron),
    "MiniMax MXFP8": ("minimax m2", MXFP8, without_head(compressed_pack(8, 32, True, "mxfp8-quantized"))),
    "Mixtral AWQ": ("mixtral", MIXTRAL_AWQ, without_head(awq_pack(32))),
    # Every gate_proj has `gate` in its name.
    "Qwen3 MoE AWQ": ("qwen3 moe", MIXTRAL_AWQ, without_head(awq_pack(32))),
    "Qwen3 MoE GPTQ-Int4": ("qwen3 moe", QWEN_GPTQ, without_head(gptq_pack(4, 32))),
}
ROUNDED: dict[str, tuple[str, dict[str, Any], Pack]] = {
    "DeepSeek-V3": ("deepseek v3", DEEPSEEK, without_head(lambda _, weight: bfloat16_blocks(weight))),
    "Qwen3 MoE mixed": (
        "qwen3 moe",
        MIXED,
        lambda module, weight: (
            experts_alone(compressed_pack(4, 32, True))(module, weight)
            or (half_scales(row_scales)(module, weight) if "self_attn" in module else None)
        ),
    ),
}


def computed(folder: Path) -> list[torch.Tensor]:
    """On one rank, on two with parts of experts, and on two with whole ones."""
    found = [log_probabilities(load(folder), prompts=PROMPTS)]
    for groups in (thread_groups(2), thread_groups(2, expert_parallel=True)):
        found += of_groups(folder, groups, PROMPTS)
    return found


def meant_and_made(case: str, config: dict[str, Any], pack: Pack, path: Path) -> tuple[torch.Tensor, Path]:
    """What the weights of a quantised checkpoint compute with 16 bits, and its folder."""
    of_case = CASES[case]
    own = {key: size for key, size in SIZES_OF_SOME.items() if key in of_case.values}
    sized = dataclasses.replace(of_case, values={**of_case.values, **SIZES, **own})
    write(sized, made(sized), path / "plain")
    meant = write_packed(path / "plain", path / "made", PackedCase(config, pack))
    write_meant(path / "plain", path / "meant", meant)
    return log_probabilities(load(path / "meant"), prompts=PROMPTS), path / "made"


@pytest.mark.parametrize("name", EXACT)
def test_experts_of_few_bits(tmp_path: Path, name: str) -> None:
    expected, folder = meant_and_made(*EXACT[name], tmp_path)
    for each in computed(folder):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)


def test_kimi_k2_5_says_in_its_text_part_that_experts_are_codes(tmp_path: Path) -> None:
    case = CASES["kimi k2.5"]
    sized = dataclasses.replace(
        case, values={**case.values, "text_config": {**case.values["text_config"], **SIZES, **EXPERT}}
    )
    write(sized, made(sized), tmp_path / "plain")
    packed = PackedCase(KIMI, experts_alone(compressed_pack(4, 32, True)))
    meant = write_packed(tmp_path / "plain", tmp_path / "made", packed)
    write_meant(tmp_path / "plain", tmp_path / "meant", meant)
    file = tmp_path / "made" / "config.json"
    raw = json.loads(file.read_text())
    raw["text_config"]["quantization_config"] = raw.pop("quantization_config")
    file.write_text(json.dumps(raw))
    expected = log_probabilities(load(tmp_path / "meant"), prompts=PROMPTS)
    for each in computed(tmp_path / "made"):
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ROUNDED)
def test_mixtures_whose_other_matrices_have_inputs_of_8_bits(tmp_path: Path, name: str) -> None:
    expected, folder = meant_and_made(*ROUNDED[name], tmp_path)
    for each in computed(folder):
        assert (each - expected).norm() < 0.3 * (expected - expected.mean()).norm()

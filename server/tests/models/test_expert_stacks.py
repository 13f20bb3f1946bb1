"""Quantised experts of which one tensor has those of a layer, as modelopt and Transformers store them."""

import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.compressed import set_quantisation
from support.eight_bit import block_scales, row_scales
from support.families import PROMPTS, made, write
from support.family_cases import CASES
from support.loading import load
from support.packed_files import Pack, PackedCase, compressed_pack, modelopt_fp4, write_meant, write_packed
from support.probabilities import log_probabilities, of_groups
from support.thread_ranks import thread_groups
from torch import Tensor

from text_generation_server.errors import ModelFilesError

State = dict[str, Tensor]
GATE_UP = ("gate_proj", "up_proj")


@dataclass(frozen=True)
class Stacks:
    """A kind of checkpoint."""

    case: str
    sizes: dict[str, int]
    config: dict[str, Any]
    """`quantization_config`"""
    pack: Pack
    names: Callable[[str, str], str]
    """From the name of a stack and a suffix of one expert's tensors to the stored name."""
    numbers: Callable[[Tensor], Tensor] = lambda numbers: numbers
    """How numbers [experts] or, of gate and up, [experts, 2] are stored."""
    rows: Callable[[str, Tensor], Tensor] = lambda _, rows: rows
    """How scales of rows [experts, rows, 1] of a stack of this name are stored."""
    is_transposed: bool = False


def _experts_alone(pack: Pack) -> Pack:
    return lambda module, weight: pack(module, weight) if ".experts." in module else None


def _fp8(scale: str, inputs: str) -> Pack:
    """One scale for all matrices, and one for their inputs."""

    def pack(_: str, weight: Tensor) -> tuple[State, Tensor]:
        codes = (weight * 256).to(torch.float8_e4m3fn)
        tensors = {"weight": codes, scale: torch.tensor(1 / 256), inputs: torch.tensor(0.02)}
        return tensors, codes.float() / 256

    return pack


def _fp4(_: str, weight: Tensor) -> tuple[State, Tensor]:
    """With one float32 for all matrices."""
    return modelopt_fp4(_, weight, divisor=torch.tensor(1024.0))


def _beside(stack: str, suffix: str) -> str:
    return stack if suffix == "weight" else f"{stack}_{suffix}"


def _of_transformers(stack: str, suffix: str) -> str:
    return stack if suffix == "weight" else f"{stack}_{suffix.removeprefix('weight_')}"


def _inside(stack: str, suffix: str) -> str:
    return f"{stack}.{suffix}"


def _first(numbers: Tensor) -> Tensor:
    """All are the same."""
    return numbers.flatten()[0].clone()


def _rows_of_fbgemm(stack: str, rows: Tensor) -> Tensor:
    return rows.transpose(1, 2) if stack.endswith("gate_up_proj") else rows


SMALL = {"hidden_size": 64, "intermediate_size": 64, "intermediate_size_mlp": 128, "moe_intermediate_size": 64}
BLOCKS = {"hidden_size": 256, "intermediate_size": 64, "moe_intermediate_size": 128}
OTHERS = [
    "*_attn*",
    "*shared_expert*",
    "*.router",
    "*.gate",
    "lm_head",
    *(f"*mlp.{each}_proj" for each in ("gate", "up", "down")),
]
MODELOPT = {"quant_method": "modelopt", "ignore": OTHERS}
TRANSFORMERS = {"quant_method": "fp8", "modules_to_not_convert": OTHERS}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["re:.*mlp.experts.*"], "weights": INT4}},
}
KINDS: dict[str, Stacks] = {
    "Llama 4, NVFP4 of modelopt": Stacks(
        *("llama4", SMALL, {**MODELOPT, "quant_algo": "NVFP4"}, _fp4, _beside, _first), is_transposed=True
    ),
    "Llama 4, FP8 of modelopt": Stacks(
        *("llama4", SMALL, {**MODELOPT, "quant_algo": "FP8"}, _fp8("weight_scale", "input_scale"), _beside, _first),
        is_transposed=True,
    ),
    "Llama 4, FP8 of rows": Stacks(
        *("llama4", SMALL, {**TRANSFORMERS, "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
        *(lambda _, weight: row_scales(weight), _of_transformers),
        rows=_rows_of_fbgemm,
        is_transposed=True,
    ),
    "Mistral Small 4": Stacks(
        *("mistral 4", SMALL, {**TRANSFORMERS, "activation_scheme": "static"}),
        *(_fp8("weight_scale_inv", "activation_scale"), _of_transformers),
        numbers=lambda numbers: numbers.view(len(numbers), -1)[:, :1, None].contiguous(),
    ),
    "Qwen 3.5 MoE, FP8 of blocks": Stacks(
        *("qwen3.5 moe", BLOCKS, {**TRANSFORMERS, "weight_block_size": [128, 128]}),
        *(lambda _, weight: block_scales(weight), _of_transformers),
    ),
    "Qwen 3.5 MoE, NVFP4 with a number for gate and for up": Stacks(
        "qwen3.5 moe", SMALL, {**MODELOPT, "quant_algo": "NVFP4"}, modelopt_fp4, _beside
    ),
    "Qwen 3.5 MoE, INT4": Stacks("qwen3.5 moe", SMALL, COMPRESSED, compressed_pack(4, 32, True), _inside),
}


def write_apart(kind: Stacks, out: Path) -> None:
    """Writes the model with 16 bits and a matrix for each expert."""
    case = CASES[kind.case]
    case = replace(case, values={**case.values, **kind.sizes})
    write(case, made(case), out)
    state = load_file(out / "model.safetensors")
    for name in [name for name in state if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        first, which = name.rsplit(".", 1)
        for expert, matrix in enumerate(state.pop(name)):
            own = matrix.t() if kind.is_transposed else matrix
            parts = zip(GATE_UP, own.chunk(2), strict=True) if which == "gate_up_proj" else ((which, own),)
            state |= {f"{first}.{expert}.{part}.weight": each.contiguous() for part, each in parts}
    save_file(state, out / "model.safetensors")


def write_stacked(kind: Stacks, apart: Path, out: Path) -> None:
    """Writes the same numbers with one tensor for all experts of a layer."""
    shutil.copytree(apart, out)
    state, found = load_file(apart / "model.safetensors"), defaultdict[str, dict[tuple[int, str], Tensor]](dict)
    for name in [name for name in state if ".experts." in name]:
        first, rest = name.split(".experts.")
        expert, module, suffix = rest.split(".")
        if suffix != "weight_shape":
            stack = "gate_up_proj" if module in GATE_UP else module
            found[f"{first}.experts.{stack} {suffix}"][int(expert), module] = state[name]
        del state[name]
    for key, tensors in found.items():
        stack, suffix = key.split()
        state[kind.names(stack, suffix)] = _stacked(kind, stack, tensors).contiguous()
    save_file(state, out / "model.safetensors")


def _stacked(kind: Stacks, stack: str, tensors: dict[tuple[int, str], Tensor]) -> Tensor:
    modules = GATE_UP if stack.endswith("gate_up_proj") else ("down_proj",)
    experts = range(len(tensors) // len(modules))
    if tensors[0, modules[0]].dim() == 0:
        numbers = torch.stack([torch.stack([tensors[expert, each] for each in modules]) for expert in experts])
        return kind.numbers(numbers if len(modules) > 1 else numbers[:, 0])
    whole = torch.stack([torch.cat([tensors[expert, each] for each in modules]) for expert in experts])
    if whole.shape[2] == 1:
        return kind.rows(stack, whole)
    return whole.transpose(1, 2) if kind.is_transposed else whole


def computed(folder: Path) -> list[Tensor]:
    """On one rank, on two with parts of experts, and on two with whole ones."""
    found = [log_probabilities(load(folder), prompts=PROMPTS)]
    for groups in (thread_groups(2), thread_groups(2, expert_parallel=True)):
        found += of_groups(folder, groups, PROMPTS)
    return found


@pytest.mark.parametrize("name", KINDS)
def test_stacks_compute_what_matrices_of_each_expert_do(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    write_apart(kind, tmp_path / "plain")
    packed = PackedCase(kind.config, _experts_alone(kind.pack))
    meant = write_packed(tmp_path / "plain", tmp_path / "apart", packed)
    write_stacked(kind, tmp_path / "apart", tmp_path / "stacked")
    found = computed(tmp_path / "stacked")
    for one, other in zip(found, computed(tmp_path / "apart"), strict=True):
        torch.testing.assert_close(one, other)
    write_meant(tmp_path / "plain", tmp_path / "meant", meant)
    expected = log_probabilities(load(tmp_path / "meant"), prompts=PROMPTS)
    if "FP8" in name or name == "Mistral Small 4":
        # Inputs are rounded too.
        assert (found[0] - expected).norm() < 0.3 * (expected - expected.mean()).norm()
    else:
        torch.testing.assert_close(found[0], expected, atol=1e-4, rtol=1e-4)


GRANITE_LEFT = ["lm_head", "re:.*block_sparse_moe.router", "re:.*mamba.*", "re:.*shared_mlp.*", "re:.*self_attn.*"]
ROWS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}


@pytest.mark.parametrize(
    ("form", "weights", "pack"),
    [
        ("float-quantized", ROWS, lambda _, weight: row_scales(weight)),
        ("pack-quantized", INT4, compressed_pack(4, 32, True)),
    ],
)
@pytest.mark.parametrize("name", ["granite moe", "granite 4"])
def test_stacks_of_granite_compute_what_their_codes_stand_for(
    tmp_path: Path, name: str, form: str, weights: dict[str, Any], pack: Pack
) -> None:
    """No tool writes matrices of each of its experts."""
    case = CASES[name]
    state_space = {"mamba_d_head": 16} if name == "granite 4" else {}
    case = replace(case, values={**case.values, **state_space, "hidden_size": 64, "intermediate_size": 64})
    write(case, made(case), tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "stacked")
    meant = load_file(tmp_path / "plain" / "model.safetensors")
    state = dict(meant)
    for each in [each for each in meant if each.endswith(("moe.input_linear.weight", "moe.output_linear.weight"))]:
        module = each.removesuffix(".weight")
        packed = [pack(module, weight) for weight in state.pop(each)]
        made_of = [tensors for tensors in packed if tensors is not None]
        meant[each] = torch.stack([weight for _, weight in made_of])
        for suffix in made_of[0][0]:
            state[f"{module}.{suffix}"] = torch.stack([tensors[suffix] for tensors, _ in made_of])
    save_file(state, tmp_path / "stacked" / "model.safetensors")
    groups = {"group_0": {"targets": ["Linear", "GraniteMoeHybridParallelExpertsLinear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": GRANITE_LEFT}
    set_quantisation(tmp_path / "stacked", config)
    write_meant(tmp_path / "plain", tmp_path / "meant", meant)
    expected = log_probabilities(load(tmp_path / "meant"), prompts=PROMPTS)
    for found in computed(tmp_path / "stacked"):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_stack_of_other_sizes_is_refused_by_name(tmp_path: Path) -> None:
    kind = KINDS["Qwen 3.5 MoE, FP8 of blocks"]
    write_apart(kind, tmp_path / "plain")
    write_packed(tmp_path / "plain", tmp_path / "apart", PackedCase(kind.config, _experts_alone(kind.pack)))
    write_stacked(kind, tmp_path / "apart", tmp_path / "stacked")
    file = tmp_path / "stacked" / "model.safetensors"
    state = load_file(file)
    name = next(name for name in state if name.endswith("experts.down_proj_scale_inv"))
    save_file({**state, name: state[name][:, :1].contiguous()}, file)
    with pytest.raises(ModelFilesError, match=r"experts\.down_proj_scale_inv` has shape .* of which each expert has"):
        load(tmp_path / "stacked")
    save_file({**state, name: state[name][1:].contiguous()}, file)
    with pytest.raises(ModelFilesError, match=r"experts\.down_proj_scale_inv` has shape .* not that of \d+ experts"):
        load(tmp_path / "stacked")

"""Weight-only quantised checkpoints of a tiny model, written by their libraries or by a packer of ours.

Each also says what its codes stand for, which is what the reference computes with.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_quant, quantize_4bit
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.compressed_matrices import NVFP4, compressed_matrix, fp4_weight, nvfp4_matrix
from support.gptq_files import gptq_matrix, packed_rows

State = dict[str, Tensor]
Pack = Callable[[str, Tensor], tuple[State, Tensor] | None]
"""From the name of a module and its weight [outputs, inputs] to its tensors and what they stand for. None: it stays."""


@dataclass(frozen=True)
class PackedCase:
    """A kind of checkpoint."""

    config: dict[str, Any]
    """`quantization_config`; empty: there is none."""
    pack: Pack


def write_packed(plain: Path, out: Path, case: PackedCase) -> State:
    """Writes the model of `plain` to `out` as the case has it; returns the weights that it stands for."""
    shutil.copytree(plain, out)
    stored: State = {}
    meant = load_file(plain / "model.safetensors")
    for name, tensor in list(meant.items()):
        module, _, kind = name.rpartition(".")
        is_matrix = kind == "weight" and tensor.dim() == 2 and "embed" not in module
        # The choice of experts is never quantised.
        packed = case.pack(module, tensor) if is_matrix and not module.endswith((".gate", "expert_gate")) else None
        if packed is None:
            stored[name] = tensor
            continue
        tensors, meant[name] = packed
        stored |= {f"{module}.{suffix}": each.contiguous() for suffix, each in tensors.items()}
    save_file(stored, out / "model.safetensors")
    config = json.loads((out / "config.json").read_text())
    described = {"quantization_config": case.config} if case.config else {}
    (out / "config.json").write_text(json.dumps({**config, **described}))
    return meant


def write_meant(plain: Path, out: Path, meant: State) -> None:
    """Writes the model of `plain` to `out` with the weights that a packed one stands for."""
    shutil.copytree(plain, out)
    save_file({name: tensor.contiguous() for name, tensor in meant.items()}, out / "model.safetensors")


def without_head(pack: Pack, *more: str) -> Pack:
    """The same for all modules but the output matrix, and those whose names end with one of `more`."""
    return lambda module, weight: None if module.endswith(("lm_head", *more)) else pack(module, weight)


def gptq_pack(bits: int = 4, group_size: int = 64, *, order: str = "", **how: Any) -> Pack:
    """`order`: "each" module has one of its own for its inputs, "shared": those with as many inputs have the same."""

    def pack(module: str, weight: Tensor) -> tuple[State, Tensor]:
        inputs = weight.shape[1]
        seed = sum(module.encode()) if order == "each" else inputs
        perm = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed)) if order else None
        matrix = gptq_matrix(weight, bits, group_size, act_order=perm, **how)
        return matrix.tensors, matrix.weight

    return pack


def awq_pack(group_size: int) -> Pack:
    """The words of AutoAWQ, with zeros."""

    def pack(module: str, weight: Tensor) -> tuple[State, Tensor] | None:
        if "v_proj" in module:
            # As files are whose list of exceptions is empty.
            return None
        groups = weight.unflatten(1, (-1, group_size))
        low = groups.amin(-1).clamp(max=0)
        scales = ((groups.amax(-1).clamp(min=0) - low) / 15).half().float()
        zeros = (-low / scales).round().clamp(0, 15)
        codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
        tensors = {
            "qweight": _by_turns(codes.flatten(1).t()),
            "qzeros": _by_turns(zeros.t()),
            "scales": scales.t().half(),
        }
        return tensors, ((codes - zeros[..., None]) * scales[..., None]).flatten(1)

    return pack


def scale_activations(folder: Path, down: str, activation: str) -> dict[str, tuple[str, Tensor]]:
    """Multiplies the second matrices of the networks in `folder`, as AutoAWQ does where it divides what an activation
    gives. Returns the name of such a matrix, and by what each of its columns was multiplied, by the module beside it.
    """
    state, scales = load_file(folder / "model.safetensors"), dict[str, tuple[str, Tensor]]()
    generator = torch.Generator().manual_seed(0)
    for name in state:
        network, _, module = name.removesuffix(".weight").rpartition(".")
        if module == down and network.endswith(("mlp", "ffn")) and name.endswith(".weight"):
            each = (torch.rand(state[name].shape[1], generator=generator) * 3 + 0.3).half().float()
            state[name] *= each
            scales[f"{network}.{activation}"] = name, each
    save_file(state, folder / "model.safetensors")
    return scales


def _by_turns(codes: Tensor) -> Tensor:
    """[n, outputs] to [n, outputs / 8]."""
    turns = codes.long().unflatten(1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1)
    return packed_rows(turns.t(), 4).t()


def compressed_pack(bits: int, group_size: int, symmetric: bool, form: str = "pack-quantized") -> Pack:
    """By compressed-tensors. `group_size` 0: a scale for each row."""

    def pack(module: str, weight: Tensor) -> tuple[State, Tensor]:
        matrix = compressed_matrix(weight, bits, group_size, symmetric, form)
        return matrix.tensors, matrix.weight

    return pack


def compressed_case(bits: int, group_size: int, symmetric: bool, form: str = "pack-quantized") -> PackedCase:
    """See `compressed_pack`."""
    kind = "float" if form.startswith(("mx", "nv")) else "int"
    weights: dict[str, Any] = {"num_bits": bits, "type": kind, "symmetric": symmetric}
    weights |= {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    return PackedCase(config, without_head(compressed_pack(bits, group_size, symmetric, form)))


def modelopt_fp4(module: str, weight: Tensor, divisor: Tensor | None = None) -> tuple[State, Tensor]:
    """The same numbers as those of compressed-tensors under modelopt's names, with a scale for inputs beside.

    `divisor` replaces that of the matrix.
    """
    matrix = nvfp4_matrix(weight, divisor)
    packed, scale, divisor = (matrix.tensors[f"weight_{name}"] for name in ("packed", "scale", "global_scale"))
    factor = 1 / divisor.view(())
    tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.01)}
    return tensors, fp4_weight(packed, scale.float() * factor)


def _by_layer(module: str, weight: Tensor) -> tuple[State, Tensor] | None:
    """Floats of 4 bits in networks, of 8 bits in attention but for the values, which are as they were."""
    if "v_proj" in module or module == "lm_head":
        return None
    if "mlp" in module:
        return modelopt_fp4(module, weight)
    matrix = compressed_matrix(weight, 8, 32, symmetric=True, form="mxfp8-quantized")
    return matrix.tensors, matrix.weight


def mixed(*modules: str) -> dict[str, Any]:
    """What modelopt writes of a model in which these are quantised by `_by_layer`."""
    layers = {
        module: {"quant_algo": "NVFP4", "group_size": 16} if "mlp" in module else {"quant_algo": "MXFP8"}
        for module in modules
        if "v_proj" not in module
    }
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


def four_bits_pack(kind: str) -> Pack:
    """By bitsandbytes, with scales that are quantised too."""

    def pack(module: str, weight: Tensor) -> tuple[State, Tensor]:
        packed, state = quantize_4bit(weight, compress_statistics=True, quant_type=kind)
        tensors = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        return {"weight": packed, **tensors}, dequantize_4bit(packed, state)

    return pack


def int8_pack(module: str, weight: Tensor) -> tuple[State, Tensor]:
    codes, largest, _ = int8_vectorwise_quant(weight.half())
    return {"weight": codes, "SCB": largest.float()}, codes.float() * (largest.float() / 127)[:, None]


def _overridden(module: str, weight: Tensor) -> tuple[State, Tensor] | None:
    """As `dynamic` of the configuration says."""
    if "v_proj" in module or module == "lm_head":
        return None
    return gptq_pack(8, 32)(module, weight) if "q_proj" in module else gptq_pack()(module, weight)


def _gptq(bits: int = 4, group_size: int = 64, **keys: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": True, **keys}


CASES: dict[str, PackedCase] = {
    "gptq": PackedCase(_gptq(), without_head(gptq_pack())),
    "gptq, one order of inputs": PackedCase(_gptq(desc_act=True), without_head(gptq_pack(order="shared"))),
    "gptq, an order for each": PackedCase(
        _gptq(desc_act=True, sym=False), without_head(gptq_pack(order="each", symmetric=False))
    ),
    "gptq, 3 bits, asymmetric": PackedCase(_gptq(3, 32, sym=False), without_head(gptq_pack(3, 32, symmetric=False))),
    "gptq_v2, 8 bits, head too": PackedCase(
        _gptq(8, -1, checkpoint_format="gptq_v2", lm_head=True), gptq_pack(8, -1, zeros_less_one=False)
    ),
    "gptq, exceptions": PackedCase(
        _gptq(dynamic={"-:.*v_proj": {}, "+:.*q_proj": {"bits": 8, "group_size": 32}}), _overridden
    ),
    "awq": PackedCase(
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        without_head(awq_pack(64)),
    ),
    "compressed-tensors, w4a16, asymmetric": compressed_case(4, 64, False),
    "compressed-tensors, w8a16": compressed_case(8, 0, True),
    "compressed-tensors, bytes of 4 bits": compressed_case(4, 64, False, "int-quantized"),
    "compressed-tensors, mxfp4": compressed_case(4, 32, True, "mxfp4-pack-quantized"),
    "compressed-tensors, nvfp4": compressed_case(4, 16, True, NVFP4),
    "compressed-tensors, mxfp8": compressed_case(8, 32, True, "mxfp8-quantized"),
    "modelopt, nvfp4": PackedCase(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, without_head(modelopt_fp4)
    ),
    "modelopt, mixed": PackedCase(
        mixed(
            *(
                f"model.layers.{layer}.{name}_proj"
                for layer in range(3)
                for name in (*(f"self_attn.{each}" for each in "qkvo"), "mlp.gate", "mlp.up", "mlp.down")
            )
        ),
        _by_layer,
    ),
    "bitsandbytes, nf4": PackedCase(
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        without_head(four_bits_pack("nf4")),
    ),
    "bitsandbytes, int8": PackedCase({"quant_method": "bitsandbytes", "load_in_8bit": True}, without_head(int8_pack)),
}

ORDERED = PackedCase(
    _gptq(4, 16, desc_act=True, sym=False), without_head(gptq_pack(4, 16, order="each", symmetric=False))
)
"""Of families with tiny sizes."""

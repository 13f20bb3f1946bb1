"""Checkpoints of 8 bits as tools write them, made of a tiny model, and the weights that they stand for.

The layouts are those that the tools document; nothing of ours makes them.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.compressed import set_quantisation

FP8, LARGEST, EDGE = torch.float8_e4m3fn, 448.0, 128
Made = tuple[dict[str, Tensor], Tensor]
"""Tensors of a matrix, by names without that of the module, and what they stand for."""


def tensor_scale(weight: Tensor) -> Made:
    """One number for the matrix, without a dimension."""
    scale = weight.abs().max() / LARGEST
    codes = (weight / scale).to(FP8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def static_scales(weight: Tensor) -> Made:
    """modelopt and older vLLM: one number for the weights, one for the inputs."""
    made, stands_for = tensor_scale(weight)
    return {**made, "input_scale": torch.tensor(0.02)}, stands_for


def row_scales(weight: Tensor) -> Made:
    """fbgemm: [rows, 1], of bfloat16-free float32."""
    scale = weight.abs().amax(1, keepdim=True) / LARGEST
    codes = (weight / scale).to(FP8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def block_scales(weight: Tensor) -> Made:
    """DeepSeek: [blocks of rows, blocks of columns], called inverse and yet what weights are multiplied by."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % EDGE, 0, -rows % EDGE))
    tiles = padded.view(padded.shape[0] // EDGE, EDGE, -1, EDGE)
    scale = tiles.abs().amax((1, 3)) / LARGEST
    whole = scale.repeat_interleave(EDGE, 0).repeat_interleave(EDGE, 1)[:rows, :columns]
    codes = (weight / whole).to(FP8)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * whole


def e8m0_scales(weight: Tensor) -> Made:
    """DeepSeek V3.1 and later (`ue8m0`): scales of blocks that are powers of two, stored as such."""
    made, _ = block_scales(weight)
    scale = torch.exp2(made["weight_scale_inv"].log2().ceil())
    rows, columns = weight.shape
    whole = scale.repeat_interleave(EDGE, 0).repeat_interleave(EDGE, 1)[:rows, :columns]
    codes = (weight / whole).to(FP8)
    return {"weight": codes, "weight_scale_inv": scale.to(torch.float8_e8m0fnu)}, codes.float() * whole


def mx_scales(weight: Tensor) -> Made:
    """MXFP8: an exponent of two plus 127 for each 32 inputs of a row."""
    groups = weight.unflatten(1, (-1, 32))
    exponents = (groups.abs().amax(-1, keepdim=True) / LARGEST).log2().ceil()
    codes = (groups / exponents.exp2()).to(FP8)
    made = {"weight": codes.flatten(1), "weight_scale_inv": (exponents[..., 0] + 127).to(torch.uint8)}
    return made, (codes.float() * exponents.exp2()).flatten(1)


FORMATS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Made]]] = {
    "fp8 of matrices": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, tensor_scale),
    "fp8 static": ({"quant_method": "fp8", "activation_scheme": "static"}, static_scales),
    "fp8 of blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, block_scales),
    "fp8 of blocks, e8m0": (
        {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        e8m0_scales,
    ),
    "mxfp8": ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, mx_scales),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, row_scales),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, static_scales),
}


def quantise_folder(
    folder: Path, out: Path, name: str, ends: tuple[str, ...] = ("_proj",), **more: Any
) -> dict[str, Tensor]:
    """Writes the model of `folder` to `out` in a format, and returns all tensors as what is there stands for.

    `ends`: of the names of modules that are quantised; `more`: further keys of the configuration.
    """
    config, make = FORMATS[name]
    shutil.copytree(folder, out)
    state: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        module, _, kind = key.rpartition(".")
        if kind != "weight" or not module.endswith(ends):
            state[key] = plain[key] = tensor
            continue
        made, plain[key] = make(tensor)
        state |= {f"{module}.{name}": value.contiguous() for name, value in made.items()}
    save_file(state, out / "model.safetensors")
    set_quantisation(out, {**config, **more})
    return plain

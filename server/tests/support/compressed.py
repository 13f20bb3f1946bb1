"""Checkpoints that compressed-tensors makes of a tiny model, and what it says that they compute.

The library quantises and dequantises the weights, and the inputs of each product: so the reference knows nothing of
ours but the shape of its configuration.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

State = dict[str, Tensor]
FORMATS = {"float": "float-quantized", "int": "int-quantized"}
STATIC_SCALE = 0.02
"""Of inputs where a checkpoint gives it: those of the tiny models stay below 448 times as much."""


def preset(name: str, targets: tuple[str, ...] = ("Linear",)) -> QuantizationScheme:
    """One of the library's."""
    return preset_name_to_scheme(name, list(targets))


def compress_folder(
    folder: Path, out: Path, schemes: Mapping[str, QuantizationScheme], ignore: tuple[str, ...] = ("lm_head",)
) -> Path:
    """Writes the model of `folder` to `out`: `schemes` maps a part of the names of modules to what they become."""
    shutil.copytree(folder, out)
    state: State = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        scheme = scheme_of(schemes, module) if kind == "weight" and tensor.dim() == 2 else None
        if scheme is None or module in ignore or "embed" in module:
            state[name] = tensor
        else:
            state |= {f"{module}.{key}": value.contiguous() for key, value in compress(tensor, scheme).items()}
    save_file(state, out / "model.safetensors")
    groups = {
        f"group_{index}": {**scheme.model_dump(exclude_none=True, mode="json"), "format": format_of(scheme)}
        for index, scheme in enumerate(schemes.values())
    }
    kinds = {group["format"] for group in groups.values()}
    set_quantisation(
        out,
        {
            "quant_method": "compressed-tensors",
            "format": kinds.pop() if len(kinds) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(ignore),
        },
    )
    return out


def set_quantisation(folder: Path, config: dict[str, Any], key: str = "quantization_config") -> None:
    """Writes it into `config.json`."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {key: config}))


def scheme_of(schemes: Mapping[str, QuantizationScheme], module: str) -> QuantizationScheme | None:
    return next((scheme for part, scheme in schemes.items() if part in module), None)


def format_of(scheme: QuantizationScheme) -> str:
    args = weights_of(scheme)
    return "pack-quantized" if scheme.input_activations is None and args.type == "int" else FORMATS[args.type]


def weights_of(scheme: QuantizationScheme) -> QuantizationArgs:
    assert scheme.weights is not None
    return scheme.weights


def compress(weight: Tensor, scheme: QuantizationScheme) -> State:
    """Tensors of one module, by names without that of the module."""
    args = weights_of(scheme)
    scale, zero_point = calculate_qparams(*_extremes(weight, args), args)
    held: State = {"weight": weight, "weight_scale": scale}
    if not args.symmetric:
        held["weight_zero_point"] = zero_point
    made = dict(BaseCompressor.get_value_from_registry(format_of(scheme)).compress(held, scheme))
    if (inputs := scheme.input_activations) is not None and not inputs.dynamic:
        made["input_scale"] = torch.tensor([STATIC_SCALE])
    return made


def _extremes(weight: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    match args.strategy:
        case "tensor":
            grouped = weight.reshape(1, -1)
            return grouped.amin(1), grouped.amax(1)
        case "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        case "block":
            assert args.block_structure is not None
            high, wide = args.block_structure
            padded = nn.functional.pad(weight, (0, -weight.shape[1] % wide, 0, -weight.shape[0] % high))
            tiles = padded.view(padded.shape[0] // high, high, -1, wide)
            return tiles.amin((1, 3)), tiles.amax((1, 3))
        case _:
            grouped = weight.unflatten(1, (-1, args.group_size or weight.shape[1]))
            return grouped.amin(-1), grouped.amax(-1)


def reference(model: PreTrainedModel, folder: Path, schemes: Mapping[str, QuantizationScheme]) -> PreTrainedModel:
    """`model` with the weights that the library makes of those in `folder`, and with its rounding of inputs."""
    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        scheme = scheme_of(schemes, name)
        if scheme is None or not isinstance(module, nn.Linear) or f"{name}.weight_scale" not in stored:
            continue
        held = {key.removeprefix(f"{name}."): value for key, value in stored.items() if key.startswith(f"{name}.")}
        whole = BaseCompressor.get_value_from_registry(format_of(scheme)).decompress(held, scheme)
        with torch.no_grad():
            module.weight.copy_(whole["weight"])
        if scheme.input_activations is not None:
            module.register_forward_pre_hook(rounding(scheme.input_activations, held.get("input_scale")))
    return model


def rounding(args: QuantizationArgs, static: Tensor | None) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """A hook that rounds the inputs of a module."""

    def hook(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = inputs
        if static is not None:
            return (fake_quantize(x, static, torch.zeros_like(static), args),)
        if args.group_size is not None:
            short = -x.shape[-1] % args.group_size
            padded = nn.functional.pad(x, (0, short))
            scale, zero = compute_dynamic_scales_and_zp(padded, args, module)
            return (fake_quantize(padded, scale, zero, args)[..., : x.shape[-1]],)
        scale, zero = compute_dynamic_scales_and_zp(x, args, module)
        # The library spreads 255 steps over twice the largest number; codes from -127 to 127 have 254.
        scale = scale * (127.5 / 127) if args.type == "int" else scale
        return (fake_quantize(x, scale, zero, args),)

    return hook

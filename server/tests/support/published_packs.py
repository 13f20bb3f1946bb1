"""Single matrices in the tensors that lie in published checkpoints: names, types and what is beside them."""

from typing import Any

import torch
from torch import Tensor

from support.eight_bit import block_scales
from support.packed_files import Pack


def half_scales(pack: Any, **scales: float) -> Pack:
    """Scales in bfloat16, as llm-compressor stores them, and further ones."""

    def packed(_: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        made, _ = pack(weight)
        scale = made["weight_scale"].bfloat16()
        extra = {name: torch.tensor([value], dtype=torch.bfloat16) for name, value in scales.items()}
        return {**made, "weight_scale": scale, **extra}, made["weight"].float() * scale.float()

    return packed


def with_numbers(pack: Any, **scales: float) -> Pack:
    """Single numbers beside each matrix."""

    def packed(_: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        made, meant = pack(weight)
        return {**made, **{name: torch.tensor(value) for name, value in scales.items()}}, meant

    return packed


def inverse_named(pack: Any, **scales: float) -> Pack:
    """The same with the other name of the weights' scale."""

    def packed(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        found = with_numbers(pack, **scales)(module, weight)
        assert found is not None
        made, meant = found
        scale = made.pop("weight_scale")
        return {**made, "weight_scale_inv": scale}, meant

    return packed


def bfloat16_blocks(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Block scales in bfloat16."""
    made, _ = block_scales(weight)
    rows, columns = weight.shape
    scale = made["weight_scale_inv"].bfloat16()
    whole = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    return {**made, "weight_scale_inv": scale}, made["weight"].float() * whole


def int8_rows(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def zero_biases(pack: Pack) -> Pack:
    """AutoGPTQ gave every matrix a bias, of a model without any too."""

    def packed(module: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
        found = pack(module, weight)
        return found and ({**found[0], "bias": torch.zeros(len(weight)).half()}, found[1])

    return packed

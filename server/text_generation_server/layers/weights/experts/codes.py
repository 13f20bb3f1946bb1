"""Quantised matrices of experts: one at a time comes in, and the kernels read all of them stacked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix

from ....config.quantisation import BLOCK, Fp8, Int8
from .. import mxfp4
from ..eight_bit import Eight
from ..formats import Groups

_LARGEST_SCALE = 2.0
"""Of floats of 4 bits that need no looking up: times 2 ** 126 it is a bfloat16."""


@dataclass(frozen=True)
class Codes:
    """Some outputs of one expert's matrix."""

    packed: Tensor
    """[outputs, ...] as `pack_codes` makes it, or float8."""
    inputs: int
    scales: Tensor
    """[outputs, groups] float32"""
    zeros: Tensor | None
    table: Tensor | None
    group_size: int
    """0: all inputs are one group."""
    w8a8: bool = False
    """See `ExpertMatrix`."""

    @classmethod
    def of_groups(cls, groups: Groups) -> "Codes":
        """The inputs must begin with a group, and be in their own order."""
        size = groups.group_size if groups.scales.shape[1] > 1 else 0
        packed = kernels.pack_codes(groups.codes, groups.bits)
        return cls(packed, groups.codes.shape[1], groups.scales, groups.zeros, groups.table, size)

    @classmethod
    def of_eight(cls, eight: Eight, scheme: Fp8 | Int8) -> "Codes":
        """Those of int8 are multiplied by 16-bit inputs, whatever the scheme has for dense matrices."""
        codes = eight.weight.view(torch.uint8) ^ 128 if eight.weight.dtype == torch.int8 else eight.weight
        scales = eight.scale_of_rows()
        by_eight = isinstance(scheme, Fp8) and scheme.activations != "none"
        return cls(codes, eight.weight.shape[1], scales, None, None, BLOCK if scales.shape[1] > 1 else 0, by_eight)


def stack(experts: int, matrices: Iterable[Sequence[Codes]]) -> ExpertMatrix:
    """All experts' matrices, of each the parts of its outputs one below the other. Takes them as they come, so that
    what is on its way is one expert's.
    """
    weight: Tensor | None = None
    scales: list[Tensor] = []
    zeros: list[Tensor | None] = []
    last: Codes | None = None
    for expert, parts in enumerate(matrices):
        packed = torch.cat([part.packed.view(torch.uint8) for part in parts]).view(parts[0].packed.dtype)
        if weight is None:
            weight = packed.new_empty((experts, *packed.shape))
        weight[expert] = packed
        scales += [part.scales for part in parts]
        zeros += [part.zeros for part in parts]
        last = parts[0]
    if weight is None or last is None:
        raise ValueError("there are no experts")
    packed_scales, size = kernels.pack_scales(torch.cat(scales), last.inputs, last.group_size)
    packed_zeros = None
    if any(each is not None for each in zeros):
        middle = float(2 ** (3 if weight.dtype == torch.int32 else 7))
        filled = [
            torch.full_like(scale, middle) if zero is None else zero for zero, scale in zip(zeros, scales, strict=True)
        ]
        packed_zeros = kernels.pack_scales(torch.cat(filled), last.inputs, last.group_size)[0]
    form = last.table, size, last.w8a8, _is_e2m1(last.table, packed_scales)
    return ExpertMatrix(weight, None, packed_scales, packed_zeros, *form)


def _is_e2m1(table: Tensor | None, scales: Tensor) -> bool:
    """See `ExpertMatrix`."""
    return (
        table is not None and torch.equal(table, mxfp4.table(table.device)) and bool((scales <= _LARGEST_SCALE).all())
    )

"""Quantised matrices of experts, which come one at a time, stacked for the MoE kernels."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix

from .. import mxfp4
from ..readers import Codes

_LARGEST_SCALE = 2.0
"""Of floats of 4 bits that need no looking up: times 2 ** 126 it is a bfloat16."""


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

"""Stacking of quantised experts, which come one at a time, for the MoE kernels."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix

from .. import mxfp4
from ..readers import Codes

_LARGEST_SCALE = 2.0
"""Largest scale with which the kernels convert e2m1 codes without a table: times 2 ** 126 it is still a bfloat16."""


def stack(experts: int, matrices: Iterable[Sequence[Codes]]) -> ExpertMatrix:
    """Stacks the matrices of all experts; the parts of an expert are concatenated along its outputs. It takes them as
    they come, so that the intermediate tensors are those of one expert.
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
    """Whether the codes are e2m1 with scales that need no table; see `ExpertMatrix`."""
    return (
        table is not None and torch.equal(table, mxfp4.table(table.device)) and bool((scales <= _LARGEST_SCALE).all())
    )

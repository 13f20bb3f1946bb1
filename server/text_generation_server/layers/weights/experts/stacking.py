"""Stacking of quantised experts, which come one at a time, for the MoE kernels."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix

from .. import mxfp4
from ..readers import Codes, packed_scales

_LARGEST_SCALE = 2.0
"""Largest scale with which the kernels convert e2m1 codes without a table: times 2 ** 126 it is still a bfloat16."""


def stack(experts: int, matrices: Iterable[Sequence[Codes]]) -> ExpertMatrix:
    """Stacks the matrices of all experts; the parts of an expert are concatenated along its outputs. It takes them as
    they come, so that the intermediate tensors are those of one expert.
    """
    weight: Tensor | None = None
    stored: list[Codes] = []
    for expert, parts in enumerate(matrices):
        packed = torch.cat([part.packed.view(torch.uint8) for part in parts]).view(parts[0].packed.dtype)
        if weight is None:
            weight = packed.new_empty((experts, *packed.shape))
        weight[expert] = packed
        # Of codes there is a copy: only scales are kept.
        stored += [replace(part, packed=packed.new_empty(0)) for part in parts]
    if weight is None:
        raise ValueError("there are no experts")
    first = stored[0]
    table, zeros = first.table, None
    scales, size, factors = packed_scales(stored)
    if any(each.zeros is not None for each in stored):
        middle = float(2 ** (3 if weight.dtype == torch.int32 else 7))
        points = [torch.full_like(each.scales, middle) if each.zeros is None else each.zeros for each in stored]
        zeros = kernels.pack_scales(torch.cat(points), first.inputs, first.group_size)[0]
    return ExpertMatrix(weight, None, scales, zeros, table, size, first.w8a8, _is_e2m1(table, scales), factors)


def _is_e2m1(table: Tensor | None, scales: Tensor) -> bool:
    """Whether the codes are e2m1 with scales that need no table; see `ExpertMatrix`."""
    # Shapes alone do not tell.
    if table is None or table.is_meta or not torch.equal(table, mxfp4.table(table.device)):
        return False
    return scales.dtype == torch.float8_e4m3fn or bool((scales <= _LARGEST_SCALE).all())

"""Stacking of quantised experts, which come one at a time, for the MoE kernels."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix

from .. import mxfp4
from ..formats import FactoredScales
from ..readers import Codes

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
    table, packed_zeros = first.table, None
    packed_scales, size, factors = _scales(stored)
    if any(each.zeros is not None for each in stored):
        middle = float(2 ** (3 if weight.dtype == torch.int32 else 7))
        zeros = [torch.full_like(each.scales, middle) if each.zeros is None else each.zeros for each in stored]
        packed_zeros = _packed(torch.cat(zeros), first)[0]
    is_e2m1 = _is_e2m1(table, packed_scales)
    return ExpertMatrix(weight, None, packed_scales, packed_zeros, table, size, first.w8a8, is_e2m1, factors)


def _scales(stored: Sequence[Codes]) -> tuple[Tensor, int, Tensor | None]:
    """Scales and the size of their groups as the kernels read them, and what float8 scales are multiplied by."""
    first, factored = stored[0], [each.factored for each in stored if each.factored is not None]
    if len(factored) < len(stored) or first.group_size != min(kernels.EXPERT_GROUPS):
        return *_packed(torch.cat([each.scales for each in stored]), first), None
    whole = FactoredScales.cat(factored)
    scales, size = _packed(whole.scales.float(), first)
    return scales.to(whole.scales.dtype), size, whole.factors


def _packed(values: Tensor, layout: Codes) -> tuple[Tensor, int]:
    return kernels.pack_scales(values, layout.inputs, layout.group_size, sizes=kernels.EXPERT_GROUPS)


def _is_e2m1(table: Tensor | None, scales: Tensor) -> bool:
    """Whether the codes are e2m1 with scales that need no table; see `ExpertMatrix`."""
    if table is None or not torch.equal(table, mxfp4.table(table.device)):
        return False
    return scales.dtype == torch.float8_e4m3fn or bool((scales <= _LARGEST_SCALE).all())

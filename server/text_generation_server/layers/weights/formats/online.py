"""Online quantisation: weights are rounded to nearest while they are loaded, without calibration.

nf4 and fp4 are those of bitsandbytes (QLoRA, Dettmers et al., 2023). int4 has groups of 128; int8 has one scale per
row, as EETQ does; mxfp4 has the powers of two of the specification (OCP Microscaling Formats, 2023, 6.3). nvfp4 is for
random weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .. import mxfp4
from .groups import FactoredScales, Groups

OnlineKind = Literal["nf4", "fp4", "int4", "int8", "mxfp4", "nvfp4"]

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution, from the appendix of the paper."""
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
"""The values of exponent and mantissa, three bits, as bitsandbytes reads them, times 12; the fourth bit is the sign."""
_LARGEST_CODE, _LARGEST_SCALE = 6.0, 448.0
"""Of nvfp4."""
_LARGEST_PIECE = 1 << 24
"""Weights that are quantised at a time, because intermediate values are wider than the codes."""


def quantise_groups(weight: Tensor, kind: OnlineKind, group_size: int | None = None) -> Groups:
    """Quantises [N, K] of a floating type. `group_size` replaces that of `kind`; 0 or more than K means one group."""
    size = _GROUPS[kind] if group_size is None else group_size
    size = size if 0 < size < weight.shape[1] else weight.shape[1]
    rows = max(1, _LARGEST_PIECE // max(1, weight.shape[1]))
    pieces = [_KINDS[kind](piece.float(), size) for piece in weight.split(rows)]
    codes, scales = (torch.cat(each) for each in zip(*((piece.codes, piece.scales) for piece in pieces), strict=True))
    factored = [piece.factored for piece in pieces if piece.factored is not None]
    return replace(pieces[0], codes=codes, scales=scales, factored=FactoredScales.cat(factored) if factored else None)


def _nf4(weight: Tensor, group_size: int) -> Groups:
    return _by_largest(weight, _NF4, group_size)


def _fp4(weight: Tensor, group_size: int) -> Groups:
    values = [value / max(_FP4) for value in _FP4]
    return _by_largest(weight, [*values, *(-value for value in values)], group_size)


def _mxfp4(weight: Tensor, group_size: int) -> Groups:
    grouped = _grouped(weight, group_size)
    # `frexp` returns mantissas of at least 1/2, so the largest weight of a group, divided by its scale, lies between 4
    # and 8; the largest value of the table is 6.
    largest = grouped.abs().amax(dim=-1)
    scales = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 3)
    return _by_table(grouped, scales, mxfp4.table(weight.device), weight.shape[1])


def _nvfp4(weight: Tensor, group_size: int) -> Groups:
    """An output with a factor of its own."""
    grouped = _grouped(weight, group_size)
    largest = grouped.abs().amax(dim=-1)
    factors = (largest.amax(dim=1) / (_LARGEST_CODE * _LARGEST_SCALE)).clamp_(min=torch.finfo(torch.float32).tiny)
    stored = (largest / _LARGEST_CODE / factors[:, None]).clamp_(max=_LARGEST_SCALE).to(torch.float8_e4m3fn)
    groups = _by_table(grouped, stored.float() * factors[:, None], mxfp4.table(weight.device), weight.shape[1])
    return replace(groups, factored=FactoredScales(stored, factors))


def _by_largest(weight: Tensor, values: Sequence[float], group_size: int) -> Groups:
    """Quantises to the nearest of `values`, times the largest absolute weight of a group."""
    grouped = _grouped(weight, group_size)
    table = torch.tensor(values, dtype=torch.float32, device=weight.device)
    return _by_table(grouped, grouped.abs().amax(dim=-1), table, weight.shape[1])


def _by_table(grouped: Tensor, scales: Tensor, table: Tensor, inputs: int) -> Groups:
    """Quantises `grouped` [N, groups, size] to the nearest of the table's values, times the scale of a group."""
    ascending, codes = torch.sort(table, stable=True)
    edges = (ascending[1:] + ascending[:-1]) / 2
    places = torch.bucketize(grouped / _divisor(scales), edges, out_int32=True)
    found = codes.to(torch.uint8)[places].flatten(1)[:, :inputs]
    return Groups(found.contiguous(), scales, None, 4, grouped.shape[2], table=table)


def _int4(weight: Tensor, group_size: int) -> Groups:
    """Quantises symmetrically; the largest weight lies half a step above the largest code, as in compressed-tensors."""
    return _integers(weight, 4, group_size, 7.5)


def _int8(weight: Tensor, group_size: int) -> Groups:
    return _integers(weight, 8, group_size, 127.0)


def _integers(weight: Tensor, bits: int, group_size: int, steps: float) -> Groups:
    """Quantises to integers. `steps` is the largest weight of a group in units of its scale."""
    grouped, middle = _grouped(weight, group_size), 2 ** (bits - 1)
    scales = grouped.abs().amax(dim=-1) / steps
    numbers = (grouped / _divisor(scales)).round_().clamp_(-middle, middle - 1).add_(middle)
    codes = numbers.to(torch.uint8).flatten(1)[:, : weight.shape[1]]
    return Groups(codes.contiguous(), scales, None, bits, group_size)


def _grouped(weight: Tensor, size: int) -> Tensor:
    """Groups the inputs to [N, groups, size], with the last group padded with zeros."""
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % size)).unflatten(1, (-1, size))


def _divisor(scales: Tensor) -> Tensor:
    """Returns the divisors of the weights, [N, groups, 1]: the scales, and 1 for groups of zeros, whose scale is 0."""
    return torch.where(scales == 0, 1.0, scales)[..., None]


_KINDS: dict[OnlineKind, Callable[[Tensor, int], Groups]] = {
    "nf4": _nf4,
    "fp4": _fp4,
    "int4": _int4,
    "int8": _int8,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}
_GROUPS: dict[OnlineKind, int] = {"nf4": 64, "fp4": 64, "int4": 128, "int8": 0, "mxfp4": mxfp4.BLOCK, "nvfp4": 16}

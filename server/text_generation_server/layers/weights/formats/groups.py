"""Group-quantised weights, into which every format of a checkpoint is converted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class FactoredScales:
    """Scales as they are stored where each is a float8 times a float32 of its output."""

    scales: Tensor
    """[N, groups] float8_e4m3fn"""
    factors: Tensor
    """[N] float32"""

    @classmethod
    def cat(cls, parts: Sequence["FactoredScales"]) -> "FactoredScales":
        """Those of several matrices, one below the other."""
        scales = torch.cat([part.scales.view(torch.uint8) for part in parts]).view(parts[0].scales.dtype)
        return cls(scales, torch.cat([part.factors for part in parts]))

    def rows(self, index: Tensor) -> "FactoredScales":
        """Those of the outputs `index`."""
        return FactoredScales(self.scales.view(torch.uint8)[index].view(self.scales.dtype), self.factors[index])


@dataclass(frozen=True)
class Groups:
    """A matrix [N outputs, K inputs], or a rank's shard of it.

    The weight of a code is `(code - zero) * scale`, or `table[code] * scale`. Inputs share scale and zero in groups
    of `group_size`; the first group may have begun before this shard, and the last one may be shorter.
    """

    codes: Tensor
    """[N, K] uint8"""
    scales: Tensor
    """[N, groups] float32"""
    zeros: Tensor | None
    """[N, groups] float32, the zero points. None: they are `2 ** (bits - 1)`, or a table replaces them."""
    bits: int
    """4 or 8; codes of fewer bits are widened."""
    group_size: int
    offset: int = 0
    """Inputs of the first group that lie before this shard."""
    perm: Tensor | None = None
    """[K] int64, which input each column of codes multiplies (act-order). None: columns are in the order of inputs."""
    table: Tensor | None = None
    """[2 ** bits] float32"""
    factored: FactoredScales | None = None
    """What `scales` were made of, if of such."""

    @cached_property
    def columns_to_groups(self) -> Tensor:
        """[K] int64, the group of each column of codes."""
        columns = torch.arange(self.codes.shape[1], device=self.codes.device)
        return (columns + self.offset) // self.group_size

    def rows(self, index: Tensor) -> "Groups":
        """Selects the outputs `index` [n] int64, in that order."""
        zeros = None if self.zeros is None else self.zeros[index]
        factored = None if self.factored is None else self.factored.rows(index)
        return replace(self, codes=self.codes[index], scales=self.scales[index], zeros=zeros, factored=factored)

    def stored(self) -> Tensor:
        """Dequantises to [N, K] float32, with columns in the order of the codes."""
        scales = self.scales[:, self.columns_to_groups]
        if self.table is not None:
            return self.table[self.codes.int()] * scales
        zeros = float(2 ** (self.bits - 1)) if self.zeros is None else self.zeros[:, self.columns_to_groups]
        return (self.codes.float() - zeros) * scales

    def dequantised(self) -> Tensor:
        """Dequantises to [N, K] float32, with columns in the order of inputs."""
        weights = self.stored()
        return weights if self.perm is None else torch.empty_like(weights).index_copy_(1, self.perm, weights)

    def fits(self, other: "Groups") -> bool:
        """Whether the rows of both can be stacked into one matrix."""
        return (
            (self.bits, self.group_size, self.offset) == (other.bits, other.group_size, other.offset)
            and _equal(self.perm, other.perm)
            and _equal(self.table, other.table)
        )


def stacked(parts: Sequence[Groups]) -> Groups:
    """Stacks the outputs of several matrices that fit."""
    first, *others = parts
    if not others:
        return first
    zeros = None
    if any(part.zeros is not None for part in parts):
        middle = float(2 ** (first.bits - 1))
        each = (torch.full_like(part.scales, middle) if part.zeros is None else part.zeros for part in parts)
        zeros = torch.cat(list(each))
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    all_factored = [part.factored for part in parts if part.factored is not None]
    factored = FactoredScales.cat(all_factored) if len(all_factored) == len(parts) else None
    return replace(first, codes=codes, scales=scales, zeros=zeros, factored=factored)


def centred(codes: Tensor, zeros: Tensor | None, bits: int) -> tuple[Tensor, Tensor | None, int]:
    """Widens codes of 1 to 8 bits to 4 or 8, and returns them with their zeros [N, groups] and their width.

    Where every zero is the middle code (or `zeros` is None), codes are shifted such that it is the middle of the wider
    ones too, and kernels need not read zeros.
    """
    wide, middle = 4 if bits <= 4 else 8, 2 ** (bits - 1)
    if zeros is None or bool((zeros == middle).all()):
        return codes + (2 ** (wide - 1) - middle), None, wide
    return codes, zeros.float(), wide


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)

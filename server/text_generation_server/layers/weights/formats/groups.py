"""Group-quantised codes that share scales: every format of them becomes this, whatever it is in the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """A matrix [N outputs, K inputs], or a rank's part of it.

    The weight of a code is `(code - zero) * scale`, or `table[code] * scale`. Inputs share scale and zero in groups
    of `group_size`; the first group may have begun before this part, and the last one may be shorter.
    """

    codes: Tensor
    """[N, K] uint8"""
    scales: Tensor
    """[N, groups] float32"""
    zeros: Tensor | None
    """[N, groups] float32: the code that stands for 0. None: `2 ** (bits - 1)`, or there is a table."""
    bits: int
    """4 or 8. Codes of fewer bits lie in the next wider ones."""
    group_size: int
    offset: int = 0
    """Inputs of the first group that lie before this part."""
    perm: Tensor | None = None
    """[K] int64: which input each column of codes multiplies. None: the one in its place."""
    table: Tensor | None = None
    """[2 ** bits] float32"""

    @cached_property
    def columns_to_groups(self) -> Tensor:
        """[K] int64: the group of each column of codes."""
        columns = torch.arange(self.codes.shape[1], device=self.codes.device)
        return (columns + self.offset) // self.group_size

    def rows(self, index: Tensor) -> "Groups":
        """The outputs `index` [n] int64, in that order."""
        zeros = None if self.zeros is None else self.zeros[index]
        return replace(self, codes=self.codes[index], scales=self.scales[index], zeros=zeros)

    def stored(self) -> Tensor:
        """[N, K] float32, with a column for each of the codes."""
        scales = self.scales[:, self.columns_to_groups]
        if self.table is not None:
            return self.table[self.codes.int()] * scales
        zeros = float(2 ** (self.bits - 1)) if self.zeros is None else self.zeros[:, self.columns_to_groups]
        return (self.codes.float() - zeros) * scales

    def dequantised(self) -> Tensor:
        """[N, K] float32, with inputs in their places."""
        weights = self.stored()
        return weights if self.perm is None else torch.empty_like(weights).index_copy_(1, self.perm, weights)

    def fits(self, other: "Groups") -> bool:
        """Whether both can be parts of one matrix, one above the other."""
        return (
            (self.bits, self.group_size, self.offset) == (other.bits, other.group_size, other.offset)
            and _equal(self.perm, other.perm)
            and _equal(self.table, other.table)
        )


def stacked(parts: Sequence[Groups]) -> Groups:
    """One matrix of several that fit: the outputs of the first come first."""
    first, *others = parts
    if not others:
        return first
    zeros = None
    if any(part.zeros is not None for part in parts):
        middle = float(2 ** (first.bits - 1))
        each = (torch.full_like(part.scales, middle) if part.zeros is None else part.zeros for part in parts)
        zeros = torch.cat(list(each))
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    return replace(first, codes=codes, scales=scales, zeros=zeros)


def centred(codes: Tensor, zeros: Tensor | None, bits: int) -> tuple[Tensor, Tensor | None, int]:
    """Codes of 1 to 8 bits as codes of 4 or 8, with their zeros [N, groups] (None: the middle).

    Where every zero is the middle, codes are moved such that it is the middle of the wider ones too: kernels need not
    read zeros then.
    """
    wide, middle = 4 if bits <= 4 else 8, 2 ** (bits - 1)
    if zeros is None or bool((zeros == middle).all()):
        return codes + (2 ** (wide - 1) - middle), None, wide
    return codes, zeros.float(), wide


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)

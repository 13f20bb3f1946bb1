"""Group-quantised weights: how their codes and scales are packed, and what they stand for.

A weight is `(code - zero) * scale`, or `table[code] * scale`; scale and zero belong to one output and one group of
inputs. Codes have 4 or 8 bits; 8-bit codes may also be float8, whose value replaces `code - zero`.

Packed codes of 4 bits are int32 words. A block of 256 inputs of one output is 32 words and eight planes of 32 inputs
each: words 2 j and 2 j + 1 hold inputs 2 j and 2 j + 1 of planes 0 to 3 and 4 to 7. In a word, bits 4 p to 4 p + 3 are
the even input's code of plane p, bits 16 + 4 p to 19 + 4 p the odd one's.

So one mask and one shift give two neighbours of a plane in the two halves of a register, as a matrix instruction takes
them (after Kim et al., "Who Says Elephants Can't Run", 2022). Inputs are padded to whole blocks with codes of any
value: x is 0 there.
"""

from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

BLOCK = 256
"""Inputs of one block of packed 4-bit codes."""
KERNEL_GROUPS = (128, 64, 32, 16)
"""Sizes of groups that the GEMM kernels take, where not all inputs are one group."""
PLANES = 8
"""Planes of a block: where it has more groups, each has two."""
_PAIRS = 16


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """uint8 [outputs, inputs] to what kernels read: int32 [outputs, ceil(inputs / 256) * 32] for 4 bits, the codes
    themselves for 8. Raises ValueError for another number of bits.
    """
    if bits == 8:
        return codes.contiguous()
    if bits != 4:
        raise ValueError(f"codes of {bits} bits cannot be packed, only of 4 and 8")
    outputs, inputs = codes.shape
    blocks = -(-inputs // BLOCK)
    padded = codes.new_zeros(outputs, blocks * BLOCK)
    padded[:, :inputs] = codes
    # Of planes 0 to 3 and of planes 4 to 7: plane, pair, member of the pair.
    planes = padded.view(outputs, blocks, 2, PLANES // 2, _PAIRS, 2)
    words = torch.zeros(outputs, blocks, _PAIRS, 2, dtype=torch.int32, device=codes.device)
    for plane in range(PLANES // 2):
        for member in range(2):
            words |= planes[:, :, :, plane, :, member].transpose(2, 3).int() << (4 * plane + 16 * member)
    return words.view(outputs, -1)


def unpack_codes(packed: Tensor, inputs: int) -> Tensor:
    """The inverse of `pack_codes`: uint8 [outputs, inputs]."""
    if packed.dtype != torch.int32:
        return packed[:, :inputs]
    outputs = packed.shape[0]
    words = packed.view(outputs, -1, _PAIRS, 2).transpose(2, 3)
    codes = packed.new_empty(outputs, words.shape[1], 2, PLANES // 2, _PAIRS, 2, dtype=torch.uint8)
    for plane in range(PLANES // 2):
        for member in range(2):
            codes[:, :, :, plane, :, member] = words >> (4 * plane + 16 * member) & 15
    return codes.view(outputs, -1)[:, :inputs]


def pack_scales(values: Tensor, inputs: int, group_size: int, group_offset: int = 0) -> tuple[Tensor, int]:
    """Scales or zeros, [outputs, groups] of any floating type, as the kernels read them, and the number of inputs of
    each group then, of which the last may be shorter (0: all inputs are one group).

    The first group lacks its first `group_offset` inputs, which belong to another rank. Where that is not 0, groups
    are divided into equal ones, so that each but the last is whole; and so are groups of more than 128.
    [1, outputs] where all inputs are one group; [blocks of 256 inputs, outputs, groups of a block] where a block holds
    2, 4, 8 or 16 groups, so that a row's values of one block lie together; [groups, outputs] for other sizes, which
    only `dequantise` reads. The type is the first of bfloat16, float16 and float32 that holds all values exactly.
    """
    values = _smallest_exact(values.float())
    offset = group_offset % group_size if group_size else 0
    if (group_size in (0, inputs) and not offset) or values.shape[1] == 1:
        return values.t().contiguous(), 0
    size_in_kernel = gcd(group_size, offset)
    size_in_kernel = next((size for size in KERNEL_GROUPS if size_in_kernel % size == 0), size_in_kernel)
    first = torch.arange(0, inputs, size_in_kernel, device=values.device)
    values = values[:, (first + offset) // group_size].t()
    if size_in_kernel in KERNEL_GROUPS:
        of_block = BLOCK // size_in_kernel
        padded = values.new_zeros(-(-len(values) // of_block) * of_block, values.shape[1])
        padded[: len(values)] = values
        values = padded.view(-1, of_block, values.shape[1]).transpose(1, 2)
    return values.contiguous(), size_in_kernel


def _smallest_exact(values: Tensor) -> Tensor:
    for dtype in (torch.bfloat16, torch.float16):
        rounded = values.to(dtype)
        if values.is_meta or torch.equal(rounded.float(), values):
            return rounded
    return values


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A group-quantised matrix [outputs, inputs]."""

    packed: Tensor
    """[outputs, ...]: codes as `pack_codes` makes them, or float8 [outputs, inputs]."""
    scales: Tensor
    """As `pack_scales` makes them."""
    zeros: Tensor | None = None
    """Likewise. None: 2 ** (bits - 1)."""
    table: Tensor | None = None
    """[16] float32: what each 4-bit code stands for."""
    group_size: int = 0
    """As `pack_scales` returns it; 0: all inputs are one group."""
    factors: Tensor | None = None
    """[outputs] float32, of NVFP4: what multiplies the scales of an output, which then are float8, never negative, in
    groups of 16. Codes are the bits of e2m1 (OCP Microscaling Formats, 2023), as the table has them too.
    """

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""
        return self.packed.shape[0]

    @property
    def is_cuda(self) -> bool:
        """Whether it lies on a GPU."""
        return self.packed.is_cuda

    @property
    def bits(self) -> int:
        """Bits of a stored weight."""
        return 4 if self.packed.dtype == torch.int32 else 8

    @property
    def groups(self) -> int:
        """Groups in 256 inputs; 1: all inputs are one group; 0: of another size than kernels read."""
        return self.scales.shape[2] if self.scales.dim() == 3 else 0 if self.group_size else 1

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        held = (self.packed, self.scales, self.zeros, self.table, self.factors)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def rows(self, rows: slice) -> "PackedMatrix":
        """Some of its outputs."""
        zeros = None if self.zeros is None else self.zeros[:, rows]
        factors = None if self.factors is None else self.factors[rows]
        return replace(self, packed=self.packed[rows], scales=self.scales[:, rows], zeros=zeros, factors=factors)

    @property
    def stored_scales(self) -> Tensor:
        """Scales as the kernels take them: float8 as bytes."""
        return self.scales if self.factors is None else self.scales.view(torch.int8)

    def values(self, inputs: int) -> Tensor:
        """The weights, float32 [outputs, inputs]."""
        if self.table is not None:
            values = self.table.float()[unpack_codes(self.packed, inputs).int()]
        elif self.packed.is_floating_point():
            values = self.packed[:, :inputs].float()
        else:
            values = unpack_codes(self.packed, inputs).float()
            values -= 2 ** (self.bits - 1) if self.zeros is None else _spread(self.zeros, inputs, self.group_size)
        values *= _spread(self.scales, inputs, self.group_size)
        return values if self.factors is None else values * self.factors[:, None]


def _spread(values: Tensor, inputs: int, group_size: int) -> Tensor:
    """Packed scales to float32 [outputs, inputs], or [outputs, 1] for one group."""
    if values.dim() == 3:
        values = values.transpose(1, 2).flatten(0, 1)
    if values.shape[0] == 1:
        return values.float().t()
    return values.float().t().repeat_interleave(group_size, 1)[:, :inputs]

"""AWQ (Lin et al., 2023) in AutoAWQ's version "gemm": `qweight`, `qzeros`, `scales`, all with inputs first.

A word holds codes of one input and eight neighbouring outputs, by turns: the even ones first. `qweight`
[inputs, outputs / 8], `qzeros` [groups, outputs / 8], `scales` [groups, outputs].
"""

import torch
from torch import Tensor

from .groups import Groups, centred
from .packing import Packing
from .shard import MatrixShard, Span

_BITS, _CODES = 4, 8
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word the code of each output is, lowest bits first."""


def read(part: MatrixShard, group_size: int, zero_point: bool) -> Groups:
    """`zero_point`: whether there must be zeros; they are read wherever there are any. Raises ModelFilesError."""
    outputs, inputs = part.shape
    span = Span.of(inputs, group_size, part.columns)
    scales = part.read_scales("scales", (span.count, outputs), span.cut, part.rows).t().contiguous()
    stored = _codes(part, "qweight", inputs, part.columns)
    zeros = _codes(part, "qzeros", span.count, span.cut) if zero_point or part.has("qzeros") else None
    codes, zeros, wide = centred(stored, zeros, _BITS)
    return Groups(codes, scales, zeros, wide, span.size, span.offset)


def _codes(part: MatrixShard, suffix: str, size: int, cut: tuple[int, int]) -> Tensor:
    """[rows, cut] of a tensor [size, outputs / 8]."""
    packing, outputs = Packing(_BITS), part.shape[0]
    first, last, skip = packing.span(*part.rows, outputs)
    words = part.read(suffix, (size, packing.words(outputs)), (torch.int32,), cut, (first, last))
    by_word = packing.unpack(words, _CODES * (last - first)).unflatten(-1, (-1, _CODES))
    return by_word[..., _PLACES].flatten(-2).narrow(1, skip, part.count[0]).t().contiguous()

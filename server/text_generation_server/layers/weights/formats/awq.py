"""AWQ (Lin et al., 2023) in AutoAWQ's version "gemm": `qweight`, `qzeros`, `scales`, all with inputs first.

A word holds the codes of one input and eight adjacent outputs, interleaved: the even ones first. `qweight`
[inputs, outputs / 8], `qzeros` [groups, outputs / 8], `scales` [groups, outputs].
"""

import torch
from torch import Tensor

from .groups import Groups, centred
from .packing import Packing
from .shard import MatrixShard, Span

_BITS, _CODES = 4, 8
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place of each output's code in its word, lowest bits first."""


def read(shard: MatrixShard, group_size: int, zero_point: bool) -> Groups:
    """Reads a shard. `zero_point` says whether zeros must exist; they are read wherever they do. Raises
    ModelFilesError.
    """
    outputs, inputs = shard.shape
    span = Span.of(inputs, group_size, shard.columns)
    scales = shard.read_scales("scales", (span.count, outputs), span.cut, shard.rows).t().contiguous()
    stored = _codes(shard, "qweight", inputs, shard.columns)
    zeros = _codes(shard, "qzeros", span.count, span.cut) if zero_point or shard.has("qzeros") else None
    codes, zeros, wide = centred(stored, zeros, _BITS)
    return Groups(codes, scales, zeros, wide, span.size, span.offset)


def _codes(shard: MatrixShard, suffix: str, size: int, cut: tuple[int, int]) -> Tensor:
    """Unpacks [rows, cut] of a tensor [size, outputs / 8]."""
    packing, outputs = Packing(_BITS), shard.shape[0]
    first, last, skip = packing.span(*shard.rows, outputs)
    words = shard.read(suffix, (size, packing.words(outputs)), (torch.int32,), cut, (first, last))
    by_word = packing.unpack(words, _CODES * (last - first)).unflatten(-1, (-1, _CODES))
    return by_word[..., _PLACES].flatten(-2).narrow(1, skip, shard.count[0]).t().contiguous()

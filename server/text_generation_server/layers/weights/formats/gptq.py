"""GPTQ (Frantar et al., 2022) as AutoGPTQ and GPTQModel store it: `qweight`, `qzeros`, `scales`, `g_idx`.

Words hold codes of one output and adjacent inputs, `qweight` [inputs * bits / 32, outputs]. Words of zeros hold
adjacent outputs, `qzeros` [groups, outputs * bits / 32]. The first format stores zero - 1, and 0 as the largest code;
`gptq_v2` stores zeros as they are. Codes of 3 bits may begin in one word and end in the next; codes of 5, 6 and 7 bits
are stored in planes.
"""

import torch
from torch import Tensor

from . import act_order
from .groups import Groups, centred
from .packing import Packing
from .shard import MatrixShard, Span

_WORDS = (torch.int32,)
_PLANES = (5, 6, 7)
"""Widths that every tool stores in planes."""


def read(shard: MatrixShard, bits: int, group_size: int, zeros_less_one: bool) -> Groups:
    """Reads a shard. Raises ModelFilesError."""
    outputs, inputs = shard.shape
    span, order = Span.of(inputs, group_size, shard.columns), input_order(shard, group_size)
    scales = shard.read_scales("scales", (span.count, outputs), span.cut, shard.rows).t().contiguous()
    packing, places = _packing(bits), act_order.places(shard, order)
    first, last, skip = packing.span(*places, inputs)
    words = shard.read("qweight", (packing.words(inputs), outputs), _WORDS, (first, last), shard.rows)
    codes = packing.unpack(words.t(), places[1] - places[0], skip)
    perm = None if order is None else order[slice(*shard.columns)]
    if perm is not None:
        codes = codes[:, perm]
    codes, zeros, wide = centred(codes.contiguous(), _zeros(shard, span, bits, zeros_less_one), bits)
    return Groups(codes, scales, zeros, wide, span.size, span.offset, perm)


def input_order(shard: MatrixShard, group_size: int) -> Tensor | None:
    """See `act_order.input_order`."""
    return act_order.input_order(shard, "g_idx", group_size)


def _zeros(shard: MatrixShard, span: Span, bits: int, less_one: bool) -> Tensor:
    """Reads [rows, groups] uint8."""
    outputs, packing = shard.shape[0], _packing(bits)
    first, last, skip = packing.span(*shard.rows, outputs)
    words = shard.read("qzeros", (span.count, packing.words(outputs)), _WORDS, span.cut, (first, last))
    zeros = packing.unpack(words, shard.count[0], skip)
    return ((zeros + int(less_one)) & ((1 << bits) - 1)).t().contiguous()


def _packing(bits: int) -> Packing:
    return Packing(bits, "planes" if bits in _PLANES else "dense")

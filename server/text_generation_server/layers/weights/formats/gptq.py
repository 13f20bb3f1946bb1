"""GPTQ (Frantar et al., 2022) as AutoGPTQ and GPTQModel store it: `qweight`, `qzeros`, `scales`, `g_idx`.

Words hold codes of one output and neighbouring inputs, `qweight` [inputs * bits / 32, outputs]. Those of zeros hold
neighbouring outputs, `qzeros` [groups, outputs * bits / 32]. The first format stores zeros less one, and 0 as the
largest code; `gptq_v2` stores them as they are. Codes of 3 bits may begin in one word and end in the next; those of 5,
6 and 7 are in planes.
"""

import torch
from torch import Tensor

from . import act_order
from .groups import Groups, centred
from .packing import Packing
from .shard import MatrixShard, Span

_WORDS = (torch.int32,)
_PLANES = (5, 6, 7)
"""Bits whose codes no tool has stored otherwise."""


def read(part: MatrixShard, bits: int, group_size: int, zeros_less_one: bool) -> Groups:
    """Raises ModelFilesError."""
    outputs, inputs = part.shape
    span, order = Span.of(inputs, group_size, part.columns), input_order(part, group_size)
    scales = part.read_scales("scales", (span.count, outputs), span.cut, part.rows).t().contiguous()
    packing, places = _packing(bits), act_order.places(part, order)
    first, last, skip = packing.span(*places, inputs)
    words = part.read("qweight", (packing.words(inputs), outputs), _WORDS, (first, last), part.rows)
    codes = packing.unpack(words.t(), places[1] - places[0], skip)
    perm = None if order is None else order[slice(*part.columns)]
    if perm is not None:
        codes = codes[:, perm]
    codes, zeros, wide = centred(codes.contiguous(), _zeros(part, span, bits, zeros_less_one), bits)
    return Groups(codes, scales, zeros, wide, span.size, span.offset, perm)


def input_order(part: MatrixShard, group_size: int) -> Tensor | None:
    """See `act_order.input_order`."""
    return act_order.input_order(part, "g_idx", group_size)


def _zeros(part: MatrixShard, span: Span, bits: int, less_one: bool) -> Tensor:
    """[rows, groups] uint8"""
    outputs, packing = part.shape[0], _packing(bits)
    first, last, skip = packing.span(*part.rows, outputs)
    words = part.read("qzeros", (span.count, packing.words(outputs)), _WORDS, span.cut, (first, last))
    zeros = packing.unpack(words, part.count[0], skip)
    return ((zeros + int(less_one)) & ((1 << bits) - 1)).t().contiguous()


def _packing(bits: int) -> Packing:
    return Packing(bits, "planes" if bits in _PLANES else "dense")

"""A packer of GPTQ checkpoints: the tensors of one matrix from its codes, by the rules of GPTQModel."""

from dataclasses import dataclass

import torch
from torch import Tensor

_WORD = 32
_PLANES = {5: ((4, 0), (1, 4)), 6: ((4, 0), (2, 4)), 7: ((4, 0), (2, 4), (1, 6))}


@dataclass(frozen=True)
class GptqMatrix:
    """Random codes, and the weights they stand for."""

    tensors: dict[str, Tensor]
    weight: Tensor
    """[outputs, inputs] float32"""


def gptq_matrix(
    weight: Tensor,
    bits: int,
    group_size: int,
    *,
    symmetric: bool = True,
    act_order: Tensor | None = None,
    zeros_less_one: bool = True,
    scale_type: torch.dtype = torch.float16,
) -> GptqMatrix:
    """`weight` [outputs, inputs] rounded to the nearest codes. `act_order` [inputs]: inputs in the order in which they
    are put into groups.
    """
    outputs, inputs = weight.shape
    size = inputs if group_size <= 0 else group_size
    g_idx = torch.arange(inputs) // size
    if act_order is not None:
        g_idx = torch.empty_like(g_idx).index_copy_(0, act_order, g_idx)
    largest, groups = (1 << bits) - 1, int(g_idx.max()) + 1
    scales = torch.empty(groups, outputs)
    zeros = torch.full((groups, outputs), 1 << (bits - 1))
    for group in range(groups):
        members = weight[:, g_idx == group]
        if symmetric:
            scales[group] = members.abs().amax(1) * 2 / largest
        else:
            low = members.amin(1).clamp(max=0)
            scales[group] = (members.amax(1).clamp(min=0) - low) / largest
            zeros[group] = (-low / scales[group]).round().long().clamp(0, largest)
    scales = scales.to(scale_type)
    held, offsets = scales.float()[g_idx].t(), zeros[g_idx].t()
    codes = ((weight / held).round() + offsets).clamp(0, largest).long()
    tensors = {
        "qweight": packed_rows(codes.t(), bits),
        "qzeros": packed_rows(((zeros - int(zeros_less_one)) & largest).t(), bits).t().contiguous(),
        "scales": scales,
        "g_idx": g_idx.to(torch.int32),
    }
    return GptqMatrix(tensors, (codes - offsets).float() * held)


def packed_rows(values: Tensor, bits: int) -> Tensor:
    """[n, columns] to int32 [n * bits / 32, columns], one bit after the other: so plain that it is right."""
    codes = torch.nn.functional.pad(values.long(), (0, 0, 0, -values.shape[0] % _WORD)).unflatten(0, (-1, _WORD))
    words = torch.zeros(codes.shape[0], bits, codes.shape[2], dtype=torch.int64)
    for place in range(_WORD):
        for bit in range(bits):
            at = _bit_of(place, bit, bits)
            words[:, at // _WORD] |= (codes[:, place] >> bit & 1) << at % _WORD
    return words.flatten(0, 1)[: -(-values.shape[0] * bits // _WORD)].to(torch.int32)


def _bit_of(place: int, bit: int, bits: int) -> int:
    """Where bit `bit` of the code at `place` of 32 is among the bits of its words."""
    if bits not in _PLANES:
        return place * bits + bit
    before = 0
    for width, lowest in _PLANES[bits]:
        if lowest <= bit < lowest + width:
            return before + place * width + bit - lowest
        before += _WORD * width
    raise ValueError(bit)

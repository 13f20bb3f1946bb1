"""Weight-only integers of compressed-tensors: `pack-quantized`, with words of codes, and `int-quantized` without
activations, with a byte a weight.

Codes are signed numbers plus `2 ** (bits - 1)`. `weight_packed` [outputs, words of inputs] int32 or `weight`
[outputs, inputs] int8; `weight_scale` [outputs, groups], [outputs], [1] or []; `weight_zero_point` [words of outputs,
groups] int32 or [outputs, groups] int8; `weight_g_idx` [inputs]; `weight_shape` [2].
"""

import torch
from torch import Tensor

from . import act_order
from .groups import Groups, centred
from .packing import Packing, packing_of
from .shard import MatrixShard, Span

_WORDS, _BYTES = (torch.int32,), (torch.int8,)
_SHAPES = (torch.int64, torch.int32)


def read(part: MatrixShard, bits: int, group_size: int, symmetric: bool) -> Groups:
    """Raises ModelFilesError."""
    _check_shape(part)
    span, order = Span.of(part.shape[1], group_size, part.columns), input_order(part, group_size)
    places = act_order.places(part, order)
    codes = _packed(part, bits, places) if part.has("weight_packed") else _bytes(part, bits, places)
    perm = None if order is None else order[slice(*part.columns)]
    if perm is not None:
        codes = codes[:, perm]
    zeros = None if symmetric else _zeros(part, span, bits)
    codes, zeros, wide = centred(codes.contiguous(), zeros, bits)
    return Groups(codes, _scales(part, span), zeros, wide, span.size, span.offset, perm)


def input_order(part: MatrixShard, group_size: int) -> Tensor | None:
    """See `act_order.input_order`."""
    return act_order.input_order(part, "weight_g_idx", group_size)


def _check_shape(part: MatrixShard) -> None:
    if not part.has("weight_shape"):
        return
    found = part.read("weight_shape", (2,), _SHAPES).tolist()
    if found != list(part.shape):
        raise part.error("weight_shape", f"says {found}, but config.json asks for {list(part.shape)}")


def _packed(part: MatrixShard, bits: int, places: tuple[int, int]) -> Tensor:
    outputs, inputs = part.shape
    packing = _packing(part, "weight_packed", 1, inputs, bits)
    first, last, skip = packing.span(*places, inputs)
    words = part.read("weight_packed", (outputs, packing.words(inputs)), _WORDS, part.rows, (first, last))
    return packing.unpack(words, places[1] - places[0], skip)


def _packing(part: MatrixShard, suffix: str, dim: int, count: int, bits: int) -> Packing:
    """As the library packs now, or as it did before version 0.20: files do not say which."""
    shape = part.stored_shape(suffix)
    packing = packing_of(shape[dim], count, bits) if len(shape) > dim else None
    if packing is None:
        raise part.error(suffix, f"has shape {list(shape)}, which does not hold {count} codes of {bits} bits")
    return packing


def _bytes(part: MatrixShard, bits: int, places: tuple[int, int]) -> Tensor:
    """Signed numbers, each in a byte."""
    return _unsigned(part.read("weight", part.shape, _BYTES, part.rows, places), bits)


def _unsigned(numbers: Tensor, bits: int) -> Tensor:
    """int8 to uint8, moved such that the least number is 0."""
    return (numbers.view(torch.uint8) + 2 ** (bits - 1)) & ((1 << bits) - 1)


def _scales(part: MatrixShard, span: Span) -> Tensor:
    outputs, shape = part.shape[0], part.stored_shape("weight_scale")
    if len(shape) == 2 and shape != (1, 1):
        return part.read_scales("weight_scale", (outputs, span.count), part.rows, span.cut).contiguous()
    if shape == (outputs,) and span.count == 1:
        return part.read_scales("weight_scale", shape, part.rows)[:, None]
    # One number for the whole matrix.
    wanted = shape if shape in ((), (1, 1)) else (1,)
    one = part.read_scales("weight_scale", wanted).reshape(1, 1)
    return one.repeat(part.count[0], span.cut[1] - span.cut[0])


def _zeros(part: MatrixShard, span: Span, bits: int) -> Tensor:
    """[rows, groups] uint8"""
    suffix, outputs = "weight_zero_point", part.shape[0]
    if part.stored_shape(suffix) == (outputs, span.count):
        return _unsigned(part.read(suffix, (outputs, span.count), _BYTES, part.rows, span.cut).contiguous(), bits)
    packing = _packing(part, suffix, 0, outputs, bits)
    first, last, skip = packing.span(*part.rows, outputs)
    words = part.read(suffix, (packing.words(outputs), span.count), _WORDS, (first, last), span.cut)
    return packing.unpack(words.t(), part.count[0], skip).t().contiguous()

"""Weight-only integers of compressed-tensors: `pack-quantized`, with words of codes, and weight-only `int-quantized`,
with one byte per weight.

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


def read(shard: MatrixShard, bits: int, group_size: int, symmetric: bool) -> Groups:
    """Reads a shard. Raises ModelFilesError."""
    _check_shape(shard)
    span, order = Span.of(shard.shape[1], group_size, shard.columns), input_order(shard, group_size)
    places = act_order.places(shard, order)
    codes = _packed(shard, bits, places) if shard.has("weight_packed") else _bytes(shard, bits, places)
    perm = None if order is None else order[slice(*shard.columns)]
    if perm is not None:
        codes = codes[:, perm]
    zeros = None if symmetric else _zeros(shard, span, bits)
    codes, zeros, wide = centred(codes.contiguous(), zeros, bits)
    return Groups(codes, _scales(shard, span), zeros, wide, span.size, span.offset, perm)


def input_order(shard: MatrixShard, group_size: int) -> Tensor | None:
    """See `act_order.input_order`."""
    return act_order.input_order(shard, "weight_g_idx", group_size)


def _check_shape(shard: MatrixShard) -> None:
    if not shard.has("weight_shape"):
        return
    found = shard.read("weight_shape", (2,), _SHAPES).tolist()
    if found != list(shard.shape):
        raise shard.error("weight_shape", f"says {found}, but config.json asks for {list(shard.shape)}")


def _packed(shard: MatrixShard, bits: int, places: tuple[int, int]) -> Tensor:
    outputs, inputs = shard.shape
    packing = _packing(shard, "weight_packed", 1, inputs, bits)
    first, last, skip = packing.span(*places, inputs)
    words = shard.read("weight_packed", (outputs, packing.words(inputs)), _WORDS, shard.rows, (first, last))
    return packing.unpack(words, places[1] - places[0], skip)


def _packing(shard: MatrixShard, suffix: str, dim: int, count: int, bits: int) -> Packing:
    """Returns the packing of the library's version 0.20, or that of earlier ones: the shape tells which."""
    shape = shard.stored_shape(suffix)
    packing = packing_of(shape[dim], count, bits) if len(shape) > dim else None
    if packing is None:
        raise shard.error(suffix, f"has shape {list(shape)}, which does not hold {count} codes of {bits} bits")
    return packing


def _bytes(shard: MatrixShard, bits: int, places: tuple[int, int]) -> Tensor:
    """Reads signed numbers of one byte each."""
    return _unsigned(shard.read("weight", shard.shape, _BYTES, shard.rows, places), bits)


def _unsigned(numbers: Tensor, bits: int) -> Tensor:
    """Converts int8 to uint8, shifted such that the lowest number is 0."""
    return (numbers.view(torch.uint8) + 2 ** (bits - 1)) & ((1 << bits) - 1)


def _scales(shard: MatrixShard, span: Span) -> Tensor:
    outputs, shape = shard.shape[0], shard.stored_shape("weight_scale")
    if len(shape) == 2 and shape != (1, 1):
        return shard.read_scales("weight_scale", (outputs, span.count), shard.rows, span.cut).contiguous()
    if shape == (outputs,) and span.count == 1:
        return shard.read_scales("weight_scale", shape, shard.rows)[:, None]
    # One number for the whole matrix.
    wanted = shape if shape in ((), (1, 1)) else (1,)
    one = shard.read_scales("weight_scale", wanted).reshape(1, 1)
    return one.repeat(shard.count[0], span.cut[1] - span.cut[0])


def _zeros(shard: MatrixShard, span: Span, bits: int) -> Tensor:
    """Reads [rows, groups] uint8."""
    suffix, outputs = "weight_zero_point", shard.shape[0]
    if shard.stored_shape(suffix) == (outputs, span.count):
        return _unsigned(shard.read(suffix, (outputs, span.count), _BYTES, shard.rows, span.cut).contiguous(), bits)
    packing = _packing(shard, suffix, 0, outputs, bits)
    first, last, skip = packing.span(*shard.rows, outputs)
    words = shard.read(suffix, (packing.words(outputs), span.count), _WORDS, (first, last), span.cut)
    return packing.unpack(words.t(), shard.count[0], skip).t().contiguous()

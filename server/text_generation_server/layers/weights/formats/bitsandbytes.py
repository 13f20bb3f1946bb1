"""Formats of bitsandbytes: 4-bit codes of a table (nf4 of QLoRA, Dettmers et al., 2023; fp4), and int8 rows.

With 4 bits, `weight` holds codes of the flattened matrix, the upper half of a byte first, in bytes or in another type's
bytes. Blocks of usually 64 weights share a scale, `weight.absmax`. With nested quantisation, scales are bytes: indices
into `weight.nested_quant_map`, times `weight.nested_absmax` of 256 adjacent scales, plus an offset. A tensor of JSON
describes all of this (`weight.quant_state.bitsandbytes__nf4`).
"""

import json
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, cast

import torch
from torch import Tensor

from .groups import Groups
from .packing import halves
from .shard import FLOATS, MatrixShard, Span

_BYTES = (torch.uint8,)
_STORAGE = (torch.uint8, torch.int8, *FLOATS)
_LARGEST_STATE = 4096
"""Bytes of the JSON, which has seven short values."""
_LARGEST_BLOCK, _LARGEST_OFFSET = 1 << 16, 1e6
_INT8_RANGE = 127.0


@dataclass(frozen=True)
class _State:
    """What the JSON of a matrix says."""

    block: int
    nested_block: int
    nested_offset: float


def read_four_bits(shard: MatrixShard, kind: Literal["nf4", "fp4"]) -> Groups:
    """Reads a shard of nf4 or fp4. Raises ModelFilesError."""
    inputs, state = shard.shape[1], _state(shard, kind)
    if inputs % 2:
        raise shard.error("weight", f"has rows of {inputs} codes, which begin inside bytes; only even numbers work")
    # Where blocks do not divide the inputs, rows begin inside a block: smaller groups have edges there too.
    span = Span.of(inputs, gcd(inputs, state.block), shard.columns)
    codes = halves(_bytes(shard), upper_first=True).view(-1, inputs)[:, slice(*shard.columns)].contiguous()
    places = torch.arange(*shard.rows, device=codes.device)[:, None] * inputs
    places = places + torch.arange(*span.cut, device=codes.device) * gcd(inputs, state.block)
    first, last = shard.rows[0] * inputs // state.block, -(-shard.rows[1] * inputs // state.block)
    scales = _scales(shard, state, first, last)[places // state.block - first]
    table = shard.read_scales("weight.quant_map", (16,))
    return Groups(codes, scales, None, 4, span.size, span.offset, table=table)


def read_int8(shard: MatrixShard) -> Groups:
    """Reads a shard of LLM.int8(), weights of outlier inputs included. Raises ModelFilesError."""
    outputs = shard.shape[0]
    if shard.has("weight_format") and (layout := int(shard.read("weight_format", (), _BYTES))) != 0:
        raise shard.error(
            "weight_format", f"is {layout}: an order of weights for one kind of card; only 0, rows, works"
        )
    weight = shard.read("weight", shard.shape, (torch.int8,), shard.rows, shard.columns)
    scales = shard.read_scales("SCB", (outputs,), shard.rows)[:, None] / _INT8_RANGE
    codes = weight.contiguous().view(torch.uint8) + 2**7
    return Groups(codes, scales, None, 8, shard.count[1])


def _state(shard: MatrixShard, kind: str) -> _State:
    suffix = f"weight.quant_state.bitsandbytes__{kind}"
    shape = shard.stored_shape(suffix)
    if len(shape) != 1 or shape[0] > _LARGEST_STATE:
        raise shard.error(suffix, f"has shape {list(shape)}; up to {_LARGEST_STATE} bytes of JSON are expected")
    text = bytes(shard.read(suffix, shape, _BYTES).tolist())
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise shard.error(suffix, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise shard.error(suffix, "is not a JSON object")
    state = cast("dict[str, Any]", found)
    if state.get("shape") != list(shard.shape) or state.get("quant_type") != kind:
        fact = f"is of {state.get('quant_type')!r} with shape {state.get('shape')!r}"
        raise shard.error(suffix, f"{fact}, but config.json asks for {kind!r} with {list(shard.shape)}")
    block, nested = state.get("blocksize"), state.get("nested_blocksize", 1)
    offset = state.get("nested_offset", 0.0)
    for name, value in (("blocksize", block), ("nested_blocksize", nested)):
        if type(value) is not int or not 1 <= value <= _LARGEST_BLOCK or value & (value - 1):
            raise shard.error(suffix, f"has {name} {value!r}, which is no power of two up to {_LARGEST_BLOCK}")
    if type(offset) not in (int, float) or not abs(offset) < _LARGEST_OFFSET:
        raise shard.error(suffix, f"has nested_offset {offset!r}, which is no mean of weights")
    return _State(cast("int", block), nested, float(offset))


def _bytes(shard: MatrixShard) -> Tensor:
    """Reads the bytes of these rows' codes. The matrix is a column, or a row, of items of one byte or more."""
    (start, stop), total = shard.rows, shard.shape[0] * shard.shape[1] // 2
    shape = shard.stored_shape("weight")
    items = max(shape, default=0)
    width = total // items if items else 0
    if width * items != total or width not in (1, 2, 4) or sorted(shape) not in ([1, items], [items]):
        raise shard.error("weight", f"has shape {list(shape)}, which does not hold {total} bytes")
    first, last = (bound * shard.shape[1] // 2 for bound in (start, stop))
    cut = (first // width, -(-last // width))
    stored = shard.read("weight", shape, _STORAGE, *(cut if size == items else None for size in shape))
    if stored.element_size() != width:
        raise shard.error(
            "weight", f"of shape {list(shape)} has type {stored.dtype}, which does not hold {total} bytes"
        )
    return stored.contiguous().view(-1).view(torch.uint8)[first - cut[0] * width :][: last - first]


def _scales(shard: MatrixShard, state: _State, first: int, last: int) -> Tensor:
    """Reads [last - first] float32, the scales of these blocks."""
    count = -(-shard.shape[0] * shard.shape[1] // state.block)
    if not shard.has("weight.nested_absmax"):
        return shard.read_scales("weight.absmax", (count,), (first, last))
    codes = shard.read("weight.absmax", (count,), _BYTES, (first, last)).int()
    values = shard.read_scales("weight.nested_quant_map", (256,))[codes]
    above = shard.read_scales("weight.nested_absmax", (-(-count // state.nested_block),))
    places = torch.arange(first, last, device=codes.device) // state.nested_block
    return values * above[places] + state.nested_offset

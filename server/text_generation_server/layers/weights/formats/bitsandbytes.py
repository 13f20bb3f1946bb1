"""What bitsandbytes stores: four bits of a table (nf4 of QLoRA, Dettmers et al., 2023; fp4), and int8 rows.

Four bits: `weight` holds codes of the flattened matrix, the upper half of a byte first, in bytes or in another type's
bytes. Blocks of usually 64 weights share a scale, `weight.absmax`; where scales were quantised too, they are bytes
that stand for numbers of `weight.nested_quant_map`, times `weight.nested_absmax` of 256 neighbours, plus an offset.
A tensor of JSON says so (`weight.quant_state.bitsandbytes__nf4`).
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
"""Bytes of JSON. It has seven short values."""
_LARGEST_BLOCK, _LARGEST_OFFSET = 1 << 16, 1e6
_INT8_RANGE = 127.0


@dataclass(frozen=True)
class _State:
    """What the JSON of a matrix says."""

    block: int
    nested_block: int
    nested_offset: float


def read_four_bits(part: MatrixShard, kind: Literal["nf4", "fp4"]) -> Groups:
    """Raises ModelFilesError."""
    inputs, state = part.shape[1], _state(part, kind)
    if inputs % 2:
        raise part.error("weight", f"has rows of {inputs} codes, which begin inside bytes; only even numbers work")
    # Rows of a number of inputs that blocks do not divide begin inside a block: smaller groups have edges there too.
    span = Span.of(inputs, gcd(inputs, state.block), part.columns)
    codes = halves(_bytes(part), upper_first=True).view(-1, inputs)[:, slice(*part.columns)].contiguous()
    places = torch.arange(*part.rows, device=codes.device)[:, None] * inputs
    places = places + torch.arange(*span.cut, device=codes.device) * gcd(inputs, state.block)
    first, last = part.rows[0] * inputs // state.block, -(-part.rows[1] * inputs // state.block)
    scales = _scales(part, state, first, last)[places // state.block - first]
    table = part.read_scales("weight.quant_map", (16,))
    return Groups(codes, scales, None, 4, span.size, span.offset, table=table)


def read_int8(part: MatrixShard) -> Groups:
    """Raises ModelFilesError. Inputs that the library computes in 16 bits have their weights here too."""
    outputs = part.shape[0]
    if part.has("weight_format") and (layout := int(part.read("weight_format", (), _BYTES))) != 0:
        raise part.error("weight_format", f"is {layout}: an order of weights for one kind of card; only 0, rows, works")
    weight = part.read("weight", part.shape, (torch.int8,), part.rows, part.columns)
    scales = part.read_scales("SCB", (outputs,), part.rows)[:, None] / _INT8_RANGE
    codes = weight.contiguous().view(torch.uint8) + 2**7
    return Groups(codes, scales, None, 8, part.count[1])


def _state(part: MatrixShard, kind: str) -> _State:
    suffix = f"weight.quant_state.bitsandbytes__{kind}"
    shape = part.stored_shape(suffix)
    if len(shape) != 1 or shape[0] > _LARGEST_STATE:
        raise part.error(suffix, f"has shape {list(shape)}; up to {_LARGEST_STATE} bytes of JSON are expected")
    text = bytes(part.read(suffix, shape, _BYTES).tolist())
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise part.error(suffix, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise part.error(suffix, "is not a JSON object")
    state = cast("dict[str, Any]", found)
    if state.get("shape") != list(part.shape) or state.get("quant_type") != kind:
        fact = f"is of {state.get('quant_type')!r} with shape {state.get('shape')!r}"
        raise part.error(suffix, f"{fact}, but config.json asks for {kind!r} with {list(part.shape)}")
    block, nested = state.get("blocksize"), state.get("nested_blocksize", 1)
    offset = state.get("nested_offset", 0.0)
    for name, value in (("blocksize", block), ("nested_blocksize", nested)):
        if type(value) is not int or not 1 <= value <= _LARGEST_BLOCK or value & (value - 1):
            raise part.error(suffix, f"has {name} {value!r}, which is no power of two up to {_LARGEST_BLOCK}")
    if type(offset) not in (int, float) or not abs(offset) < _LARGEST_OFFSET:
        raise part.error(suffix, f"has nested_offset {offset!r}, which is no mean of weights")
    return _State(cast("int", block), nested, float(offset))


def _bytes(part: MatrixShard) -> Tensor:
    """Of the codes of these rows. The matrix is a column, or a row, of items of one byte or more."""
    (start, stop), total = part.rows, part.shape[0] * part.shape[1] // 2
    shape = part.stored_shape("weight")
    items = max(shape, default=0)
    width = total // items if items else 0
    if width * items != total or width not in (1, 2, 4) or sorted(shape) not in ([1, items], [items]):
        raise part.error("weight", f"has shape {list(shape)}, which does not hold {total} bytes")
    first, last = (bound * part.shape[1] // 2 for bound in (start, stop))
    cut = (first // width, -(-last // width))
    stored = part.read("weight", shape, _STORAGE, *(cut if size == items else None for size in shape))
    if stored.element_size() != width:
        raise part.error("weight", f"of shape {list(shape)} has type {stored.dtype}, which does not hold {total} bytes")
    return stored.contiguous().view(-1).view(torch.uint8)[first - cut[0] * width :][: last - first]


def _scales(part: MatrixShard, state: _State, first: int, last: int) -> Tensor:
    """[last - first] float32 of these blocks."""
    count = -(-part.shape[0] * part.shape[1] // state.block)
    if not part.has("weight.nested_absmax"):
        return part.read_scales("weight.absmax", (count,), (first, last))
    codes = part.read("weight.absmax", (count,), _BYTES, (first, last)).int()
    values = part.read_scales("weight.nested_quant_map", (256,))[codes]
    above = part.read_scales("weight.nested_absmax", (-(-count // state.nested_block),))
    places = torch.arange(first, last, device=codes.device) // state.nested_block
    return values * above[places] + state.nested_offset

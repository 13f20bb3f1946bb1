"""Loading of stored matrices: a rank's part of them, in the variants in which they run (`linear.py`).

There are two ways of cutting (Megatron-LM, Shoeybi et al., 2019). Column parallel: each rank holds some outputs, and no
communication is needed. Row parallel: each rank holds some inputs, and the outputs of all ranks must be summed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from ...config.quantisation import BLOCK, Packed, Scheme
from ...weights import Slice
from . import eight_bit, few_bits, formats
from .blocks import RowBlock, read_ranges, row_order
from .checkpoint import Checkpoint
from .grouped import Grouped
from .linear import Dense, Linear, Split
from .rows8 import Rows8

Part = Dense | Rows8 | Grouped


def column_parallel(checkpoint: Checkpoint, blocks: Sequence[RowBlock], inputs: int, bias: bool) -> Linear:
    """Stacks this rank's rows of several stored matrices into one, so that one product computes them all. Those that
    are stored in different ways have a product each. Raises ModelFilesError.
    """
    parts = [
        part
        for scheme, run in groupby(blocks, lambda block: scheme_of(checkpoint, block.name))
        for part in _rows(checkpoint, list(run), inputs, scheme)
    ]
    biases = _biases(checkpoint, blocks) if bias else None
    return replace(parts[0], bias=biases) if len(parts) == 1 else Split(parts, biases)


def row_parallel(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    columns: tuple[int, int],
    bias: bool,
    in_order: bool = False,
) -> Linear:
    """Reads this rank's input columns of a stored matrix [outputs, inputs]. `bias`: whether this rank adds it; one of
    the ranks must. `in_order`: inputs come in the order that `input_order` returned. Raises ModelFilesError.
    """
    part = _columns(checkpoint, name, shape, columns, in_order)
    return replace(part, bias=checkpoint.source.read(f"{name}.bias", shape[:1]) if bias else None)


def scheme_of(checkpoint: Checkpoint, name: str) -> Scheme | None:
    """How a matrix runs. None: with the bits that it is stored with."""
    if checkpoint.makes_quantised:
        return checkpoint.schemes.of(name)
    return checkpoint.schemes.among(name, checkpoint.source.has)


def input_order(checkpoint: Checkpoint, name: str, shape: tuple[int, int]) -> list[int] | None:
    """The order of its own that a stored matrix [outputs, inputs] has among its inputs: which comes first, second, and
    so on. None: it has none. Raises ModelFilesError.
    """
    scheme = stored_scheme(checkpoint, name)
    if not isinstance(scheme, Packed):
        return None
    order = few_bits.input_order(checkpoint.source, name, shape, scheme)
    return None if order is None else order.tolist()


def _biases(checkpoint: Checkpoint, blocks: Sequence[RowBlock]) -> Tensor:
    source = checkpoint.source
    biases = torch.cat([read_ranges(source, f"{each.name}.bias", (each.size,), 0, each.ranges) for each in blocks])
    order = row_order(blocks, biases.device)
    return biases if order is None else biases[order]


def dense_rows(checkpoint: Checkpoint, block: RowBlock, inputs: int) -> Tensor:
    """[rows, inputs] in the model's type, however they are stored. Raises ModelFilesError."""
    scheme = stored_scheme(checkpoint, block.name)
    if scheme is None:
        return _plain_rows(checkpoint, [block], inputs)
    if isinstance(scheme, Packed):
        return few_bits.read_rows(checkpoint.source, [block], inputs, scheme)[0].dequantised().to(checkpoint.dtype)
    return eight_bit.read_rows(checkpoint.source, [block], inputs, scheme).dequantised(checkpoint.dtype)


def dense_columns(checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """[outputs, columns] in the model's type, however they are stored. Raises ModelFilesError."""
    scheme = stored_scheme(checkpoint, name)
    if scheme is None:
        return _plain_columns(checkpoint, name, shape, columns)
    if isinstance(scheme, Packed):
        return few_bits.dense_columns(checkpoint.source, name, shape, columns, scheme).to(checkpoint.dtype)
    # From the edge of a block on.
    first = columns[0] // BLOCK * BLOCK
    whole = eight_bit.read_columns(checkpoint.source, name, shape, (first, columns[1]), scheme)
    return whole.dequantised(checkpoint.dtype)[:, columns[0] - first :].contiguous()


def stored_scheme(checkpoint: Checkpoint, name: str) -> Scheme | None:
    """How the files have a matrix; None: with 16 or 32 bits."""
    return None if checkpoint.makes_quantised else scheme_of(checkpoint, name)


def _rows(checkpoint: Checkpoint, blocks: Sequence[RowBlock], inputs: int, scheme: Scheme | None) -> Sequence[Part]:
    """Rows of blocks of one scheme: one matrix wherever that can be."""
    if scheme is None:
        return [Dense(_plain_rows(checkpoint, blocks, inputs))]
    # Each block by itself where it is made here: of what has 16 bits, a single matrix is there at a time.
    plain = (_plain_rows(checkpoint, [each], inputs) for each in blocks)
    if isinstance(scheme, Packed):
        if checkpoint.makes_quantised:
            return [few_bits.linear(formats.stacked([few_bits.quantise_weight(each, scheme) for each in plain]))]
        return [few_bits.linear(each) for each in few_bits.read_rows(checkpoint.source, blocks, inputs, scheme)]
    if checkpoint.makes_quantised:
        return [eight_bit.stacked([eight_bit.quantise_weight(each, scheme) for each in plain]).linear(scheme)]
    return [eight_bit.read_rows(checkpoint.source, blocks, inputs, scheme).linear(scheme)]


def _columns(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int], in_order: bool
) -> Part:
    scheme = scheme_of(checkpoint, name)
    if scheme is None:
        return Dense(_plain_columns(checkpoint, name, shape, columns))
    if checkpoint.makes_quantised:
        plain = _plain_columns(checkpoint, name, shape, columns)
        if isinstance(scheme, Packed):
            return few_bits.linear(few_bits.quantise_weight(plain, scheme))
        return eight_bit.quantise_weight(plain, scheme).linear(scheme)
    if isinstance(scheme, Packed):
        return _packed_columns(checkpoint, name, shape, columns, scheme, in_order)
    if scheme.weights == "block" and columns[0] % BLOCK:
        # Inputs share scales from the first one on, so no form has blocks that begin before it.
        return Dense(dense_columns(checkpoint, name, shape, columns))
    return eight_bit.read_columns(checkpoint.source, name, shape, columns, scheme).linear(scheme)


def _packed_columns(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    columns: tuple[int, int],
    scheme: Packed,
    in_order: bool,
) -> Part:
    if in_order:
        groups = few_bits.read_columns(checkpoint.source, name, shape, columns, scheme)
        return few_bits.linear(replace(groups, perm=None))
    if columns != (0, shape[1]) and input_order(checkpoint, name, shape) is not None:
        # Inputs of another order are everywhere in the groups: a part of them has a part of every group.
        return Dense(dense_columns(checkpoint, name, shape, columns))
    return few_bits.linear(few_bits.read_columns(checkpoint.source, name, shape, columns, scheme))


def _plain_rows(checkpoint: Checkpoint, blocks: Sequence[RowBlock], inputs: int) -> Tensor:
    """[rows of all blocks, inputs] of what is stored with 16 or 32 bits."""
    source = checkpoint.source

    def rows(block: RowBlock) -> Tensor:
        if checkpoint.names.transposed:
            return read_ranges(source, f"{block.name}.weight", (inputs, block.size), 1, block.ranges).t()
        return read_ranges(source, f"{block.name}.weight", (block.size, inputs), 0, block.ranges)

    # The whole first, so that its parts, which are read one by one, leave no gaps in the memory between matrices.
    weight = source.empty((sum(block.rows for block in blocks), inputs))
    first = 0
    for block in blocks:
        weight[first : first + block.rows] = rows(block)
        first += block.rows
    order = row_order(blocks, weight.device)
    return weight if order is None else weight[order]


def _plain_columns(checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    if checkpoint.names.transposed:
        return checkpoint.source.read(f"{name}.weight", (shape[1], shape[0]), Slice(0, *columns)).t().contiguous()
    return checkpoint.source.read(f"{name}.weight", shape, Slice(1, *columns))

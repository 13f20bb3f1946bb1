"""From stored matrices to a rank's part of them, in the forms in which they run (`linear.py`).

There are two ways of cutting (Megatron-LM, Shoeybi et al., 2019). Column parallel: each rank holds some outputs, and no
communication is needed. Row parallel: each rank holds some inputs, and the outputs of all ranks must be summed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from ...config.quantisation import BLOCK, Fp8, Int8, Packed, Scheme
from ...errors import UnsupportedModel
from ...weights import Slice
from .blocks import RowBlock, read_ranges, row_order
from .checkpoint import Checkpoint
from .eight_bit import quantise_weight, read_columns, read_rows, stacked
from .grouped import Grouped
from .linear import Dense, Linear, Split
from .rows8 import Rows8

Part = Dense | Rows8 | Grouped


def column_parallel(checkpoint: Checkpoint, blocks: Sequence[RowBlock], inputs: int, bias: bool) -> Linear:
    """Stacks this rank's rows of several stored matrices into one, so that one product computes them all. Those that
    are stored in different ways have a product each. Raises ModelFilesError.
    """
    parts = [
        _rows(checkpoint, list(run), inputs, scheme)
        for scheme, run in groupby(blocks, lambda block: checkpoint.schemes.of(block.name))
    ]
    biases = _biases(checkpoint, blocks) if bias else None
    return replace(parts[0], bias=biases) if len(parts) == 1 else Split(parts, biases)


def row_parallel(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int], bias: bool
) -> Linear:
    """Reads this rank's input columns of a stored matrix [outputs, inputs]. `bias`: whether this rank adds it; one of
    the ranks must. Raises ModelFilesError.
    """
    part = _columns(checkpoint, name, shape, columns, checkpoint.schemes.of(name))
    return replace(part, bias=checkpoint.source.read(f"{name}.bias", shape[:1]) if bias else None)


def _biases(checkpoint: Checkpoint, blocks: Sequence[RowBlock]) -> Tensor:
    source = checkpoint.source
    biases = torch.cat([read_ranges(source, f"{each.name}.bias", (each.size,), 0, each.ranges) for each in blocks])
    order = row_order(blocks, biases.device)
    return biases if order is None else biases[order]


def dense_rows(checkpoint: Checkpoint, block: RowBlock, inputs: int) -> Tensor:
    """[rows, inputs] in the model's type, however they are stored. Raises ModelFilesError."""
    scheme = checkpoint.stored_scheme(block.name)
    if scheme is None:
        return _plain_rows(checkpoint, [block], inputs)
    return read_rows(checkpoint.source, [block], inputs, _eight_bit(scheme)).dequantised(checkpoint.dtype)


def dense_columns(checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """[outputs, columns] in the model's type, however they are stored. Raises ModelFilesError."""
    scheme = checkpoint.stored_scheme(name)
    if scheme is None:
        return _plain_columns(checkpoint, name, shape, columns)
    # From the edge of a block on.
    first = columns[0] // BLOCK * BLOCK
    whole = read_columns(checkpoint.source, name, shape, (first, columns[1]), _eight_bit(scheme))
    return whole.dequantised(checkpoint.dtype)[:, columns[0] - first :].contiguous()


def _rows(checkpoint: Checkpoint, blocks: Sequence[RowBlock], inputs: int, scheme: Scheme | None) -> Part:
    if scheme is None:
        return Dense(_plain_rows(checkpoint, blocks, inputs))
    eight_bit = _eight_bit(scheme)
    if checkpoint.makes_quantised:
        # One after the other: of what has 16 bits, a single matrix is there at a time.
        return stacked([quantise_weight(_plain_rows(checkpoint, [each], inputs), eight_bit) for each in blocks]).linear(
            eight_bit
        )
    return read_rows(checkpoint.source, blocks, inputs, eight_bit).linear(eight_bit)


def _columns(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int], scheme: Scheme | None
) -> Part:
    if scheme is None:
        return Dense(_plain_columns(checkpoint, name, shape, columns))
    eight_bit = _eight_bit(scheme)
    if checkpoint.makes_quantised:
        return quantise_weight(_plain_columns(checkpoint, name, shape, columns), eight_bit).linear(eight_bit)
    if eight_bit.weights == "block" and columns[0] % BLOCK:
        # Inputs share scales from the first one on, so no form has blocks that begin before it.
        return Dense(dense_columns(checkpoint, name, shape, columns))
    return read_columns(checkpoint.source, name, shape, columns, eight_bit).linear(eight_bit)


def _eight_bit(scheme: Scheme) -> Fp8 | Int8:
    if isinstance(scheme, Packed):
        raise UnsupportedModel(f"matrices in the format {scheme.format!r} are not read")
    return scheme


def _plain_rows(checkpoint: Checkpoint, blocks: Sequence[RowBlock], inputs: int) -> Tensor:
    """[rows of all blocks, inputs] of what is stored with 16 or 32 bits."""
    source = checkpoint.source

    def rows(block: RowBlock) -> Tensor:
        if checkpoint.names.transposed:
            return read_ranges(source, f"{block.name}.weight", (inputs, block.size), 1, block.ranges).t()
        return read_ranges(source, f"{block.name}.weight", (block.size, inputs), 0, block.ranges)

    weight = torch.cat([rows(block) for block in blocks]).contiguous()
    order = row_order(blocks, weight.device)
    return weight if order is None else weight[order]


def _plain_columns(checkpoint: Checkpoint, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    if checkpoint.names.transposed:
        return checkpoint.source.read(f"{name}.weight", (shape[1], shape[0]), Slice(0, *columns)).t().contiguous()
    return checkpoint.source.read(f"{name}.weight", shape, Slice(1, *columns))

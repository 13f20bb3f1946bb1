"""Tensor-parallel shards of stored matrices, as `Linear`s (Megatron-LM, Shoeybi et al., 2019).

Column parallel: each rank holds some outputs, and no communication is needed. Row parallel: each rank holds some
inputs, and an all-reduce adds up the outputs.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from .blocks import RowBlock, read_ranges, row_order
from .checkpoint import Matrices
from .linear import Split
from .readers import Single, reader_of
from .sites import Site


def column_parallel(checkpoint: Matrices, blocks: Sequence[RowBlock], inputs: int, bias: bool) -> Single | Split:
    """Stacks this rank's rows of several stored matrices into one, so that one GEMM computes them all. Those of
    different schemes have a GEMM each. Raises ModelFilesError.
    """
    return stacked_rows(checkpoint, blocks, inputs, _biases(checkpoint, blocks) if bias else None)


def stacked_rows(
    checkpoint: Matrices, blocks: Sequence[RowBlock], inputs: int, bias: Tensor | None = None
) -> Single | Split:
    """`column_parallel` with the bias [rows of all blocks] that is given."""
    parts = [
        part
        for reader, run in groupby(blocks, lambda block: reader_of(checkpoint, block.name))
        for part in reader.rows(list(run), inputs)
    ]
    site = Site(tuple(blocks), inputs)
    return replace(parts[0], bias=bias, site=site) if len(parts) == 1 else Split(parts, bias, site=site)


def row_parallel(
    checkpoint: Matrices,
    name: str,
    shape: tuple[int, int],
    columns: tuple[int, int],
    bias: bool,
    in_order: bool = False,
) -> Single:
    """Reads this rank's input columns of a stored matrix [outputs, inputs]. `bias`: whether this rank adds it; one of
    the ranks must. `in_order`: inputs come in the order that `input_order` of its reader returns. Raises
    ModelFilesError.
    """
    reader = reader_of(checkpoint, name)
    part = (reader.ordered_columns if in_order else reader.columns)(name, shape, columns)
    order = reader.input_order(name, shape) if in_order else None
    block = RowBlock(name, shape[0], ((0, shape[0]),))
    site = Site((block,), shape[1], columns, tuple(order[slice(*columns)]) if order else (), adds_bias=bias)
    return replace(part, bias=checkpoint.source.read(f"{name}.bias", shape[:1]) if bias else None, site=site)


def _biases(checkpoint: Matrices, blocks: Sequence[RowBlock]) -> Tensor:
    source = checkpoint.source
    biases = torch.cat([read_ranges(source, f"{each.name}.bias", (each.size,), 0, each.ranges) for each in blocks])
    order = row_order(blocks, biases.device)
    return biases if order is None else biases[order]

"""Weight-only quantised matrices as checkpoints store them, or made of 16-bit ones, and the variant in which they
run.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.quantisation import Packed
from ...weights import WeightSource
from . import formats
from .blocks import RowBlock, row_order
from .formats import Groups, OnlineKind, Part
from .grouped import Grouped

_MADE: dict[str, OnlineKind] = {
    "online-nf4": "nf4",
    "online-fp4": "fp4",
    "bnb-nf4": "nf4",
    "bnb-fp4": "fp4",
    "mxfp4": "mxfp4",
}


def read_rows(source: WeightSource, blocks: Sequence[RowBlock], inputs: int, scheme: Packed) -> list[Groups]:
    """Rows of stored matrices, one block on top of the other; as few matrices as can be, since those whose inputs have
    different orders cannot be one. Raises ModelFilesError.
    """
    runs: list[list[Groups]] = []
    for block in blocks:
        groups = _block(source, block, inputs, scheme)
        if runs and runs[-1][0].fits(groups):
            runs[-1].append(groups)
        else:
            runs.append([groups])
    return [formats.stacked(run) for run in runs]


def _block(source: WeightSource, block: RowBlock, inputs: int, scheme: Packed) -> Groups:
    first, last = block.span
    groups = formats.read_groups(Part(source, block.name, (block.size, inputs), (first, last), (0, inputs)), scheme)
    order = row_order([block], groups.codes.device)
    if order is None and len(block.ranges) == 1:
        return groups
    rows = torch.tensor([row - first for cut in block.ranges for row in range(*cut)], device=groups.codes.device)
    return groups.rows(rows if order is None else rows[order])


def read_columns(
    source: WeightSource, name: str, shape: tuple[int, int], columns: tuple[int, int], scheme: Packed
) -> Groups:
    """Input columns of a stored matrix [outputs, inputs]; where inputs have an order of their own, these places in it.
    Raises ModelFilesError.
    """
    return formats.read_groups(Part(source, name, shape, (0, shape[0]), columns), scheme)


def input_order(source: WeightSource, name: str, shape: tuple[int, int], scheme: Packed) -> Tensor | None:
    """[inputs] int64: which input comes first, second, and so on, where a matrix has an order of its own. Raises
    ModelFilesError.
    """
    return formats.input_order(Part.whole(source, name, shape), scheme)


def dense_columns(
    source: WeightSource, name: str, shape: tuple[int, int], columns: tuple[int, int], scheme: Packed
) -> Tensor:
    """[outputs, columns] float32, whatever the order of the inputs is. Raises ModelFilesError."""
    whole = input_order(source, name, shape, scheme) is not None
    groups = read_columns(source, name, shape, (0, shape[1]) if whole else columns, scheme)
    return groups.dequantised()[:, slice(*columns)] if whole else groups.dequantised()


def quantise_weight(weight: Tensor, scheme: Packed) -> Groups:
    """Makes it of a 16-bit matrix [outputs, inputs], by rounding to the nearest.

    With the scheme of a stored format, of random weights: what takes as long to multiply by.
    """
    kind = _MADE.get(scheme.format, "int4" if scheme.bits <= 4 else "int8")
    groups = formats.quantise_groups(weight, kind, scheme.group_size)
    if scheme.symmetric:
        return groups
    return replace(groups, zeros=torch.full_like(groups.scales, float(2 ** (groups.bits - 1))))


def linear(groups: Groups) -> Grouped:
    """In the form in which it runs."""
    inputs = groups.codes.shape[1]

    def packed(values: Tensor) -> tuple[Tensor, int]:
        return kernels.pack_scales(values, inputs, groups.group_size, groups.offset)

    scales, size = packed(groups.scales)
    zeros = None if groups.zeros is None else packed(groups.zeros)[0]
    codes = kernels.pack_codes(groups.codes, groups.bits)
    return Grouped(inputs, codes, scales, zeros, groups.table, groups.perm, size)

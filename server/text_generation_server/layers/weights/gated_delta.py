"""Weights of a gated delta net. Each rank has some of the heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.recurrent import GatedDeltaSpec
from ...weights import Slice
from .blocks import RowBlock, in_step, read_ranges
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import HeadSplit

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GatedDeltaWeights:
    """The weights of one layer."""

    first: Linear
    """Column parallel: queries and keys of this rank's key heads, values of its heads, gates of the result, then for
    each head how much is corrected (beta), and how fast its state decays (alpha).
    """
    conv: Tensor
    """[channels, kernel], of queries, keys and values."""
    rate: Tensor
    """[heads] float32, logarithms."""
    bias: Tensor
    """[heads] float32"""
    norm: Tensor
    """[value_dim]"""
    out: Linear
    """Row parallel."""


def load_gated_delta(checkpoint: Checkpoint, layer: int, spec: GatedDeltaSpec, heads: HeadSplit) -> GatedDeltaWeights:
    """Reads the heads of this rank; those of keys are `kv_heads` of the split. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size

    def of_heads(name: str) -> Tensor:
        # They are exponents of sums over whole contexts, for which 16 bits are too few.
        part = Slice(0, heads.q_start, heads.q_stop)
        return source.read(checkpoint.inside(layer, name), (spec.num_heads,), part, torch.float32)

    return GatedDeltaWeights(
        column_parallel(checkpoint, _first_blocks(checkpoint, layer, spec, heads), hidden, False),
        in_step(_convolution(checkpoint, layer, spec, heads)),
        of_heads(names.delta_rate),
        of_heads(names.delta_bias),
        source.read(f"{checkpoint.inside(layer, names.delta_norm)}.weight", (spec.value_dim,)),
        row_parallel(
            checkpoint,
            checkpoint.inside(layer, names.delta_out),
            (hidden, spec.num_heads * spec.value_dim),
            (heads.q_start * spec.value_dim, heads.q_stop * spec.value_dim),
            False,
        ),
    )


def _convolution(checkpoint: Checkpoint, layer: int, spec: GatedDeltaSpec, heads: HeadSplit) -> Tensor:
    """Reads the convolution of this rank's channels, [channels, 1, kernel]."""
    source, names = checkpoint.source, checkpoint.names
    sizes = (*[spec.num_key_heads * spec.key_dim] * 2, spec.num_heads * spec.value_dim)
    one = f"{checkpoint.inside(layer, names.delta_conv)}.weight"
    if not names.delta_convs or source.has(one):
        return read_ranges(source, one, (sum(sizes), 1, spec.kernel), 0, _channels(spec, heads))
    each = zip(names.delta_convs, sizes, _parts(spec, heads), strict=True)
    return torch.cat(
        [
            read_ranges(source, f"{checkpoint.inside(layer, name)}.weight", (size, 1, spec.kernel), 0, rows)
            for name, size, rows in each
        ]
    )


def _parts(spec: GatedDeltaSpec, heads: HeadSplit) -> tuple[Ranges, Ranges, Ranges]:
    """Returns this rank's rows of queries, of keys and of values, each in a tensor of its own."""
    keys = _stretches(heads.kv_heads, spec.key_dim)
    return keys, keys, _stretches(range(heads.q_start, heads.q_stop), spec.value_dim)


def _channels(spec: GatedDeltaSpec, heads: HeadSplit) -> Ranges:
    """Returns this rank's rows of queries, keys and values, where all queries come first, then keys, then values."""
    keys = spec.num_key_heads * spec.key_dim
    own = range(heads.q_start, heads.q_stop)
    return (
        *_stretches(heads.kv_heads, spec.key_dim),
        *_stretches(heads.kv_heads, spec.key_dim, first=keys),
        *_stretches(own, spec.value_dim, first=2 * keys),
    )


def _first_blocks(checkpoint: Checkpoint, layer: int, spec: GatedDeltaSpec, heads: HeadSplit) -> list[RowBlock]:
    names, own = checkpoint.names, range(heads.q_start, heads.q_stop)
    values, keys = spec.num_heads * spec.value_dim, spec.num_key_heads * spec.key_dim
    if names.delta_qkvz is not None and names.delta_ba is not None:
        blocks = (
            (names.delta_qkvz, 2 * (keys + values), _fused_rows(spec, heads)),
            (names.delta_ba, 2 * spec.num_heads, _fused_scalars(spec, heads)),
        )
    else:
        qkv = ((names.delta_qkv, 2 * keys + values, _channels(spec, heads)),)
        if names.delta_apart is not None:
            qkv = tuple(zip(names.delta_apart, (keys, keys, values), _parts(spec, heads), strict=True))
        blocks = (
            *qkv,
            (names.delta_z, values, _stretches(own, spec.value_dim)),
            (names.delta_b, spec.num_heads, _stretches(own, 1)),
            (names.delta_a, spec.num_heads, _stretches(own, 1)),
        )
    return [RowBlock(checkpoint.inside(layer, name), size, rows) for name, size, rows in blocks]


def _fused_rows(spec: GatedDeltaSpec, heads: HeadSplit) -> Ranges:
    """Returns this rank's rows where each key head has its query, its key, the values of its heads, and their gates."""
    shared, key, value = spec.num_heads // spec.num_key_heads, spec.key_dim, spec.value_dim
    group = 2 * (key + shared * value)
    firsts = [head // shared * group + 2 * key + head % shared * value for head in range(heads.q_start, heads.q_stop)]
    return (
        *((head * group, head * group + key) for head in heads.kv_heads),
        *((head * group + key, head * group + 2 * key) for head in heads.kv_heads),
        *((first, first + value) for first in firsts),
        *((first + shared * value, first + (shared + 1) * value) for first in firsts),
    )


def _fused_scalars(spec: GatedDeltaSpec, heads: HeadSplit) -> Ranges:
    """Returns this rank's rows where each key head has beta of its heads, then alpha of its heads."""
    shared = spec.num_heads // spec.num_key_heads
    firsts = [head // shared * 2 * shared + head % shared for head in range(heads.q_start, heads.q_stop)]
    return (*_stretches(firsts, 1), *_stretches(firsts, 1, first=shared))


def _stretches(places: Sequence[int], size: int, first: int = 0) -> Ranges:
    """Returns the ranges of the runs of `size` rows that `places` numbers, counted from row `first`."""
    return tuple((first + place * size, first + (place + 1) * size) for place in places)

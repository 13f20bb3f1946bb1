"""Weights of Kimi delta attention. Each rank has some of the heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.recurrent import KimiDeltaSpec
from ...errors import ModelFilesError
from ...weights import Slice
from .blocks import RowBlock, in_step
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import HeadSplit


@dataclass(frozen=True)
class KimiDeltaWeights:
    """The weights of one layer."""

    first: Linear
    """Makes queries, keys and values of this rank's heads; their decays, then their gates, or, whole on every rank, the
    low-rank vectors of both; then how much each head is corrected (beta).
    """
    decay: Linear | None
    """From the low-rank vector to the decays of this rank's heads, [heads * key_dim]; None: `first` makes them."""
    gate: Linear | None
    """The same of the gates, [heads * value_dim]."""
    conv: Tensor
    """[channels, kernel], of queries, keys and values."""
    rate: Tensor
    """[heads] float32, logarithms."""
    bias: Tensor
    """[heads, key_dim] float32"""
    norm: Tensor
    """[value_dim] float32"""
    out: Linear
    """Row parallel."""


def load_kimi_delta(checkpoint: Checkpoint, layer: int, spec: KimiDeltaSpec, heads: HeadSplit) -> KimiDeltaWeights:
    """Reads the heads of this rank. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    start, stop, rank = heads.q_start, heads.q_stop, spec.rank

    def rows(name: str, size: int) -> RowBlock:
        return RowBlock(checkpoint.inside(layer, name), spec.num_heads * size, ((start * size, stop * size),))

    def whole(name: str) -> RowBlock:
        return RowBlock(checkpoint.inside(layer, name), rank, ((0, rank),))

    sizes = (spec.key_dim, spec.key_dim, spec.value_dim)
    apart = [rows(name, size) for name, size in zip(names.delta_apart or (), sizes, strict=True)]
    pairs = ((names.delta_decay, spec.key_dim), (names.delta_gate, spec.value_dim))
    of_hidden = [whole(stored[0]) if rank else rows(stored[0], size) for stored, size in pairs]
    of_rank = [column_parallel(checkpoint, [rows(stored[-1], size)], rank, False) for stored, size in pairs if rank]
    bias = source.read(
        checkpoint.inside(layer, names.delta_bias),
        (spec.num_heads * spec.key_dim,),
        Slice(0, start * spec.key_dim, stop * spec.key_dim),
        torch.float32,
    )
    return KimiDeltaWeights(
        column_parallel(checkpoint, [*apart, *of_hidden, rows(names.delta_b, 1)], hidden, False),
        of_rank[0] if of_rank else None,
        of_rank[1] if of_rank else None,
        in_step(_convolution(checkpoint, layer, spec, heads)),
        _rate(checkpoint, layer, spec, heads),
        bias.view(-1, spec.key_dim),
        source.read(f"{checkpoint.inside(layer, names.delta_norm)}.weight", (spec.value_dim,), dtype=torch.float32),
        row_parallel(
            checkpoint,
            checkpoint.inside(layer, names.delta_out),
            (hidden, spec.num_heads * spec.value_dim),
            (start * spec.value_dim, stop * spec.value_dim),
            False,
        ),
    )


def _convolution(checkpoint: Checkpoint, layer: int, spec: KimiDeltaSpec, heads: HeadSplit) -> Tensor:
    """Reads the three convolutions of this rank's channels, [channels, 1, kernel]."""
    sizes = (spec.key_dim, spec.key_dim, spec.value_dim)
    return torch.cat(
        [
            checkpoint.source.read(
                f"{checkpoint.inside(layer, name)}.weight",
                (spec.num_heads * size, 1, spec.kernel),
                Slice(0, heads.q_start * size, heads.q_stop * size),
            )
            for name, size in zip(checkpoint.names.delta_convs, sizes, strict=True)
        ]
    )


def _rate(checkpoint: Checkpoint, layer: int, spec: KimiDeltaSpec, heads: HeadSplit) -> Tensor:
    """Reads [heads], which some files have as [1, 1, heads, 1]."""
    source, name = checkpoint.source, checkpoint.inside(layer, checkpoint.names.delta_rate)
    shapes = {dim: (*[1] * dim, spec.num_heads, *[1] * (dim // 2)) for dim in (0, 2)}
    try:
        dim = next((dim for dim, shape in shapes.items() if source.shape(name) == shape), 0)
    except ModelFilesError:
        # Random weights have no shapes; what a file lacks, its reader says.
        dim = 0
    return source.read(name, shapes[dim], Slice(dim, heads.q_start, heads.q_stop), torch.float32).flatten()

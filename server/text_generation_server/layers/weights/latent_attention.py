"""Weights of latent attention: its heads are shared among the ranks, the latent vector is whole on each."""

from dataclasses import dataclass

from torch import Tensor

from ...config.spec import LatentAttentionSpec
from ..rope import rotary_order
from .blocks import RowBlock, ranges
from .checkpoint import Checkpoint
from .linear import Linear
from .loading import column_parallel, row_parallel
from .readers import reader_of
from .split import HeadSplit


@dataclass(frozen=True)
class LatentAttentionWeights:
    """Of one layer. Elements that are turned are in the order of `rotary_order`."""

    first: Linear
    """Of hidden states: the vector that queries are products of, or the queries of this rank, then the latent vector
    and the key beside it.
    """
    queries: Linear | None
    """[heads of this rank * (key_dim + rope_dim), query_dim], where there is such a vector."""
    query_norm: Tensor | None
    """[query_dim]"""
    latent_norm: Tensor
    """[latent_dim]"""
    keys: Tensor
    """[heads of this rank, key_dim, latent_dim]: what makes keys of the latent vector."""
    values: Tensor
    """[heads of this rank, latent_dim, value_dim]: what makes values of it."""
    out: Linear
    """Row parallel."""


def load_latent_attention(
    checkpoint: Checkpoint, layer: int, spec: LatentAttentionSpec, heads: HeadSplit
) -> LatentAttentionWeights:
    """Reads the heads of this rank. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    queries, q_norm = None, None
    if spec.query_dim:
        first = RowBlock(checkpoint.inside(layer, names.q_a), spec.query_dim, ((0, spec.query_dim),))
        queries = column_parallel(
            checkpoint, [_queries(checkpoint, layer, names.q_b, spec, heads)], spec.query_dim, False
        )
        q_norm = source.read(f"{checkpoint.inside(layer, names.q_a_norm)}.weight", (spec.query_dim,))
    else:
        first = _queries(checkpoint, layer, names.q, spec, heads)
    width = spec.latent_dim + spec.rope_dim
    latent = RowBlock(checkpoint.inside(layer, names.kv_a), width, ((0, width),), _turned(spec, spec.latent_dim))
    keys, values = _of_latent(checkpoint, layer, spec, heads)
    out = row_parallel(
        checkpoint,
        checkpoint.inside(layer, names.out),
        (hidden, spec.num_heads * spec.value_dim),
        (heads.q_start * spec.value_dim, heads.q_stop * spec.value_dim),
        False,
    )
    return LatentAttentionWeights(
        column_parallel(checkpoint, [first, latent], hidden, False),
        queries,
        q_norm,
        source.read(f"{checkpoint.inside(layer, names.kv_a_norm)}.weight", (spec.latent_dim,)),
        keys,
        values,
        out,
    )


def _queries(checkpoint: Checkpoint, layer: int, name: str, spec: LatentAttentionSpec, heads: HeadSplit) -> RowBlock:
    size, held = spec.key_dim + spec.rope_dim, range(heads.q_start, heads.q_stop)
    whole = checkpoint.inside(layer, name)
    return RowBlock(whole, spec.num_heads * size, ranges(held, size), _turned(spec, spec.key_dim))


def _turned(spec: LatentAttentionSpec, before: int) -> tuple[int, ...]:
    """Order of rows of which those after the first `before` are turned; none where they stay as they are."""
    order = rotary_order(spec.rope, spec.rope_dim)
    return (*range(before), *(before + each for each in order)) if order != sorted(order) else ()


def _of_latent(
    checkpoint: Checkpoint, layer: int, spec: LatentAttentionSpec, heads: HeadSplit
) -> tuple[Tensor, Tensor]:
    """What makes keys and values, with 16 bits: they are factors of queries and results, not of hidden states."""
    size, held = spec.key_dim + spec.value_dim, range(heads.q_start, heads.q_stop)
    rows = RowBlock(checkpoint.inside(layer, checkpoint.names.kv_b), spec.num_heads * size, ranges(held, size))
    whole = reader_of(checkpoint, rows.name).dense_rows(rows, spec.latent_dim).view(len(held), size, spec.latent_dim)
    keys, values = whole.split((spec.key_dim, spec.value_dim), dim=1)
    return keys.contiguous(), values.transpose(1, 2).contiguous()

"""Weights of latent attention. Each rank has some of the heads; the latent vector is whole on every rank."""

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
    """The weights of one layer. Rotated elements are in the order of `rotary_order`."""

    first: Linear
    """Makes, of hidden states, the low-rank query vector or the queries of this rank, then the latent vector and the
    rotated key that all heads share, then the gates of this rank's heads, where they have some.
    """
    queries: Linear | None
    """[heads of this rank * (key_dim + rope_dim), query_dim], where the layer has a low-rank query vector."""
    query_norm: Tensor | None
    """[query_dim]"""
    latent_norm: Tensor
    """[latent_dim]"""
    keys: Tensor
    """[heads of this rank, key_dim, latent_dim], the key projection of the latent vector."""
    values: Tensor
    """[heads of this rank, latent_dim, value_dim], the value projection of the latent vector."""
    out: Linear
    """Output projection, row parallel."""


def load_latent_attention(
    checkpoint: Checkpoint, layer: int, spec: LatentAttentionSpec, heads: HeadSplit
) -> LatentAttentionWeights:
    """Reads the heads of this rank. Raises ModelFilesError."""
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    queries, q_norm = None, None
    if spec.query_dim:
        first = RowBlock(checkpoint.inside(layer, names.q_a), spec.query_dim, ((0, spec.query_dim),))
        queries = column_parallel(
            checkpoint, [_queries(checkpoint, layer, names.q_b, spec, heads)], spec.query_dim, False
        )
        q_norm = _norm(checkpoint, layer, names.q_a_norm, spec.query_dim, spec.query_scale)
    else:
        first = _queries(checkpoint, layer, names.q, spec, heads)
    width = spec.latent_dim + spec.rope_dim
    latent = RowBlock(checkpoint.inside(layer, names.kv_a), width, ((0, width),), _rotated_rows(spec, spec.latent_dim))
    keys, values = _of_latent(checkpoint, layer, spec, heads)
    blocks = [first, latent]
    if spec.gates is not None and names.attention_gate is not None:
        size = spec.gate_size
        cuts = ((heads.q_start * size, heads.q_stop * size),)
        blocks.append(RowBlock(checkpoint.inside(layer, names.attention_gate), spec.num_heads * size, cuts))
    out = row_parallel(
        checkpoint,
        checkpoint.inside(layer, names.out),
        (hidden, spec.num_heads * spec.value_dim),
        (heads.q_start * spec.value_dim, heads.q_stop * spec.value_dim),
        False,
    )
    return LatentAttentionWeights(
        column_parallel(checkpoint, blocks, hidden, False),
        queries,
        q_norm,
        _norm(checkpoint, layer, names.kv_a_norm, spec.latent_dim, spec.latent_scale),
        keys,
        values,
        out,
    )


def _norm(checkpoint: Checkpoint, layer: int, name: str, size: int, scale: float) -> Tensor:
    """Reads the weight of a norm whose output is multiplied by `scale`."""
    weight = checkpoint.source.read(f"{checkpoint.inside(layer, name)}.weight", (size,))
    return weight if scale == 1.0 else (weight.float() * scale).to(weight.dtype)


def _queries(checkpoint: Checkpoint, layer: int, name: str, spec: LatentAttentionSpec, heads: HeadSplit) -> RowBlock:
    size, held = spec.key_dim + spec.rope_dim, range(heads.q_start, heads.q_stop)
    whole = checkpoint.inside(layer, name)
    return RowBlock(whole, spec.num_heads * size, ranges(held, size), _rotated_rows(spec, spec.key_dim))


def _rotated_rows(spec: LatentAttentionSpec, before: int) -> tuple[int, ...]:
    """Returns the order of a head's rows, of which RoPE rotates those after the first `before`; empty: as stored."""
    if spec.rope is None:
        return ()
    order = rotary_order(spec.rope, spec.rope_dim)
    return (*range(before), *(before + each for each in order)) if order != sorted(order) else ()


def _of_latent(
    checkpoint: Checkpoint, layer: int, spec: LatentAttentionSpec, heads: HeadSplit
) -> tuple[Tensor, Tensor]:
    """Reads the key and the value projection with 16 bits: the absorbed form multiplies queries and results by them."""
    size, held = spec.key_dim + spec.value_dim, range(heads.q_start, heads.q_stop)
    rows = RowBlock(checkpoint.inside(layer, checkpoint.names.kv_b), spec.num_heads * size, ranges(held, size))
    whole = reader_of(checkpoint, rows.name).dense_rows(rows, spec.latent_dim).view(len(held), size, spec.latent_dim)
    keys, values = whole.split((spec.key_dim, spec.value_dim), dim=1)
    return keys.contiguous(), values.transpose(1, 2).contiguous()

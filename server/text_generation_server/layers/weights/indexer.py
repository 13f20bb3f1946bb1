"""Weights of an indexer, which chooses the positions that tokens attend to. They are whole on every rank."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...config.spec import IndexerSpec, LatentAttentionSpec
from ..rope import rotary_order
from .blocks import RowBlock
from .checkpoint import Checkpoint
from .linear import Dense, Linear
from .loading import column_parallel
from .sites import Site


@dataclass(frozen=True)
class IndexerWeights:
    """The weights of one layer. Rotated elements are in the order of `rotary_order`."""

    queries: Linear
    """[heads * head_dim, query_dim], of the normalised low-rank query vector."""
    keys: Linear
    """[head_dim, hidden]"""
    norm: Tensor
    """[head_dim], the weight of the layer norm of keys."""
    norm_bias: Tensor
    """[head_dim]"""
    weights: Linear
    """[heads, hidden], never quantised: makes the weight of each head."""
    gates: Linear | None = None
    """[head_dim, hidden], never quantised: makes the logits with which elements of a key count within their pool. None,
    as the next one: keys are not pooled."""
    offsets: Tensor | None = None
    """[pool, head_dim] float32, what is added to these logits at each place of a pool."""


def load_indexer(
    checkpoint: Checkpoint, layer: int, attention: LatentAttentionSpec, spec: IndexerSpec
) -> IndexerWeights:
    """Reads the indexer of a layer with this attention. Raises ModelFilesError."""
    names, source, hidden = checkpoint.names, checkpoint.source, checkpoint.spec.hidden_size
    order = _order(attention, spec)
    size, rows = spec.head_dim, spec.num_heads * spec.head_dim
    queries = RowBlock(checkpoint.inside(layer, names.index_q), rows, ((0, rows),), order)
    keys = RowBlock(checkpoint.inside(layer, names.index_k), size, ((0, size),), order)
    norm = checkpoint.inside(layer, names.index_k_norm)
    weight, bias = (source.read(f"{norm}.{kind}", (size,)) for kind in ("weight", "bias"))
    if order:
        places = torch.tensor(order, device=weight.device)
        weight, bias = weight[places], bias[places]
    name, heads = checkpoint.inside(layer, names.index_weights), spec.num_heads
    site = Site((RowBlock(name, heads, ((0, heads),)),), hidden)
    return IndexerWeights(
        column_parallel(checkpoint, [queries], attention.query_dim, False),
        column_parallel(checkpoint, [keys], hidden, False),
        weight,
        bias,
        Dense(source.read(f"{name}.weight", (heads, hidden)), site=site),
        *_pooling(checkpoint, layer, attention.pool, size),
    )


def _pooling(checkpoint: Checkpoint, layer: int, pool: int, size: int) -> tuple[Dense | None, Tensor | None]:
    """Reads `gates` and `offsets` of keys of this size, if they are pooled."""
    if not pool:
        return None, None
    names, source = checkpoint.names, checkpoint.source
    gate, offset = (checkpoint.inside(layer, name) for name in (names.index_gate, names.index_offset))
    return Dense(source.read(gate, (size, checkpoint.spec.hidden_size))), source.read(offset, (pool, size)).float()


def _order(attention: LatentAttentionSpec, spec: IndexerSpec) -> tuple[int, ...]:
    """Returns the order of the elements of a query and of a key, of which RoPE rotates the first; empty: as stored."""
    if not spec.interleaved or attention.rope is None:
        return ()
    rotated = rotary_order(replace(attention.rope, interleaved=True), attention.rope_dim)
    return (*rotated, *range(attention.rope_dim, spec.head_dim))

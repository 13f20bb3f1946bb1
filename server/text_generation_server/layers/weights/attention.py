"""Weights of attention. Each rank has some of the heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.spec import AttentionSpec, BlockIndexerSpec
from ...weights import Slice
from ..rope import rotary_order
from .blocks import RowBlock, ranges, read_ranges
from .checkpoint import Checkpoint, fold_norm_weight
from .linear import Linear
from .loading import column_parallel, row_parallel
from .split import HeadSplit


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of one layer. Elements of query and key heads are in the order of `rotary_order`."""

    qkv: Linear
    """Column parallel: query, key and value heads of this rank, in this order, then gates of the query heads, or the
    queries and the key of an indexer. Query heads alone, where the layer reads keys and values of another one."""
    out: Linear
    """Output projection, row parallel."""
    q_norm: Tensor | None = None
    """[head_dim], or [heads of this rank, head_dim]."""
    k_norm: Tensor | None = None
    """The same for keys: a layer with keys has both or neither."""
    sinks: Tensor | None = None
    """[heads of this rank] float32, logits of attention sinks."""
    slopes: Tensor | None = None
    """[heads of this rank] float32, slopes of ALiBi."""
    index_q_norm: Tensor | None = None
    """[head_dim of the indexer], as the next one."""
    index_k_norm: Tensor | None = None


def load_attention(
    checkpoint: Checkpoint, layer: int, spec: AttentionSpec, heads: HeadSplit, inputs: int | None = None
) -> AttentionWeights:
    """Reads the heads of this rank. `inputs`: the size of what they read, where it is not that of hidden states. Raises
    ModelFilesError.
    """
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    order = list(range(spec.head_dim)) if spec.rope is None else rotary_order(spec.rope, spec.head_dim)
    blocks = _qkv_blocks(checkpoint, layer, spec, heads, tuple(order) if order != sorted(order) else ())
    if spec.indexer is not None:
        blocks += _index_blocks(checkpoint, layer, spec, spec.indexer, heads)
    qkv = column_parallel(checkpoint, blocks, inputs or hidden, spec.qkv_bias)
    out = row_parallel(
        checkpoint,
        checkpoint.inside(layer, names.out),
        (hidden, spec.num_heads * spec.value_size),
        (heads.q_start * spec.value_size, heads.q_stop * spec.value_size),
        spec.out_bias and checkpoint.is_first,
    )
    slopes = None
    if spec.slopes:
        device = checkpoint.source.empty((0,)).device
        slopes = torch.tensor(spec.slopes[heads.q_start : heads.q_stop], device=device)
    norms, sinks = _norms(checkpoint, layer, spec, heads, order), _sinks(checkpoint, layer, spec, heads)
    return AttentionWeights(qkv, out, *norms, sinks, slopes, *_index_norms(checkpoint, layer, spec.indexer))


def _index_blocks(
    checkpoint: Checkpoint, layer: int, spec: AttentionSpec, indexer: BlockIndexerSpec, heads: HeadSplit
) -> list[RowBlock]:
    """Returns where the queries of this rank's KV heads are stored, and the key, which is whole on every rank."""
    names, size = checkpoint.names, indexer.head_dim
    q_name, k_name = (checkpoint.inside(layer, name) for name in (names.index_q, names.index_k))
    queries = RowBlock(q_name, spec.num_kv_heads * size, ranges(heads.kv_heads, size))
    return [queries, RowBlock(k_name, size, ((0, size),))]


def _index_norms(checkpoint: Checkpoint, layer: int, indexer: BlockIndexerSpec | None) -> tuple[Tensor | None, ...]:
    """Reads the weights of the norms of index queries and keys, if there is an indexer."""
    if indexer is None:
        return None, None
    names = (checkpoint.names.index_q_norm, checkpoint.names.index_k_norm)
    whole = (f"{checkpoint.inside(layer, name)}.weight" for name in names)
    return tuple(fold_norm_weight(checkpoint.source.read(name, (indexer.head_dim,)), indexer.norm) for name in whole)


def _norms(
    checkpoint: Checkpoint, layer: int, spec: AttentionSpec, heads: HeadSplit, order: list[int]
) -> tuple[Tensor | None, Tensor | None]:
    """Reads the weights of the QK norm: of queries, then of keys."""
    if (norm := spec.qk_norm) is None:
        return None, None
    names, size = checkpoint.names, spec.head_dim

    def weight(name: str, count: int, held: Sequence[int]) -> Tensor:
        if not norm.norm.weight:
            return checkpoint.source.empty((size,)).fill_(1.0)
        inside = checkpoint.inside(layer, name)
        if norm.over == "head":
            stored = checkpoint.source.read(f"{inside}.weight", (size,))
        elif "{head}" in name:
            each = (f"{inside.replace('{head}', str(head))}.weight" for head in held)
            stored = torch.stack([checkpoint.source.read(one, (size,)) for one in each])
        elif norm.over == "heads":
            stored = read_ranges(checkpoint.source, f"{inside}.weight", (count, size), 0, ranges(held))
        else:
            cuts = ranges(held, size)
            stored = read_ranges(checkpoint.source, f"{inside}.weight", (count * size,), 0, cuts).view(-1, size)
        return fold_norm_weight(stored[..., order], norm.norm)

    queries = weight(names.q_norm, spec.num_heads, range(heads.q_start, heads.q_stop))
    if spec.reads_layer is not None:
        return queries, None
    return queries, weight(names.k_norm, spec.num_kv_heads, heads.kv_heads)


def _sinks(checkpoint: Checkpoint, layer: int, spec: AttentionSpec, heads: HeadSplit) -> Tensor | None:
    if not spec.sinks:
        return None
    part = Slice(0, heads.q_start, heads.q_stop)
    name = checkpoint.inside(layer, checkpoint.names.sinks)
    return checkpoint.source.read(name, (spec.num_heads,), part).float()


def _qkv_blocks(
    checkpoint: Checkpoint, layer: int, spec: AttentionSpec, heads: HeadSplit, order: tuple[int, ...]
) -> list[RowBlock]:
    """Returns where the rows of this rank's heads are stored, with queries and keys in `order`."""
    names, size = checkpoint.names, spec.head_dim
    q_heads, kv_heads = range(heads.q_start, heads.q_stop), heads.kv_heads
    if spec.output_gate:
        return _gated_blocks(checkpoint, layer, spec, heads, order)
    if names.qkv is None:
        values = names.k if spec.keys_are_values else names.v
        parts = (
            (names.q, spec.num_heads, q_heads, size, order),
            (names.k, spec.num_kv_heads, kv_heads, size, order),
            (values, spec.num_kv_heads, kv_heads, spec.value_size, ()),
        )
        if spec.reads_layer is not None:
            parts = parts[:1]
        return [
            RowBlock(checkpoint.inside(layer, name), count * each, ranges(held, each), rotated)
            for name, count, held, each, rotated in parts
        ]
    if names.qkv_layout == "shards":
        return _sharded_blocks(checkpoint, checkpoint.inside(layer, names.qkv), spec, heads, order)
    if names.qkv_layout == "blocks":
        first_v = spec.num_heads + spec.num_kv_heads
        rotated = [*q_heads, *(spec.num_heads + head for head in kv_heads)]
        values = [first_v + head for head in kv_heads]
    else:
        group = spec.num_heads // spec.num_kv_heads
        rotated = [head // group * (group + 2) + head % group for head in q_heads]
        rotated += [head * (group + 2) + group for head in kv_heads]
        values = [head * (group + 2) + group + 1 for head in kv_heads]
    name, total = checkpoint.inside(layer, names.qkv), (spec.num_heads + 2 * spec.num_kv_heads) * size
    if not order:
        return [RowBlock(name, total, ranges([*rotated, *values], size))]
    return [RowBlock(name, total, ranges(rotated, size), order), RowBlock(name, total, ranges(values, size))]


def _sharded_blocks(
    checkpoint: Checkpoint, name: str, spec: AttentionSpec, heads: HeadSplit, order: tuple[int, ...]
) -> list[RowBlock]:
    """Where each shard that wrote the matrix has the queries of its heads, then its keys and its values."""
    names, shards, size = checkpoint.names, checkpoint.names.qkv_shards, spec.head_dim
    queries, keys = spec.num_heads // shards, spec.num_kv_heads // shards
    part = (queries + keys) * size + keys * spec.value_size
    first_key = queries * size + (keys * spec.value_size if names.qkv_values_first else 0)
    first_value = (queries if names.qkv_values_first else queries + keys) * size

    def rows(held: Sequence[int], each: int, width: int, first: int) -> tuple[tuple[int, int], ...]:
        starts = (head // each * part + first + head % each * width for head in held)
        return tuple((start, start + width) for start in starts)

    found = (
        (rows(range(heads.q_start, heads.q_stop), queries, size, 0), order),
        (rows(heads.kv_heads, keys, size, first_key), order),
        (rows(heads.kv_heads, keys, spec.value_size, first_value), ()),
    )
    return [RowBlock(name, shards * part, cuts, rotated, part) for cuts, rotated in found]


def _gated_blocks(
    checkpoint: Checkpoint, layer: int, spec: AttentionSpec, heads: HeadSplit, order: tuple[int, ...]
) -> list[RowBlock]:
    """Where gates have a matrix of their own, or each query head is followed by its gate."""
    names, size, kv_heads = checkpoint.names, spec.head_dim, heads.kv_heads
    stored = (names.q, names.k, names.v, names.attention_gate or names.q)
    q, k, v, gate = (checkpoint.inside(layer, name) for name in stored)
    step = 1 if names.attention_gate else 2
    queries = range(step * heads.q_start, step * heads.q_stop, step)
    gates = [place + step - 1 for place in queries]
    return [
        RowBlock(q, step * spec.num_heads * size, ranges(queries, size), order),
        RowBlock(k, spec.num_kv_heads * size, ranges(kv_heads, size), order),
        RowBlock(v, spec.num_kv_heads * size, ranges(kv_heads, size)),
        RowBlock(gate, step * spec.num_heads * spec.gate_size, ranges(gates, spec.gate_size)),
    ]

"""Weights of attention to compressed positions. Each rank has some groups of heads; the rest is whole on every rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.spec import CompressedAttentionSpec, EntryIndexerSpec
from ...weights import Slice
from ..rope import rotary_order
from .blocks import RowBlock, ranges
from .checkpoint import Checkpoint
from .linear import Dense, Linear
from .loading import column_parallel, row_parallel
from .readers import reader_of
from .sites import Site
from .split import HeadSplit


@dataclass(frozen=True)
class EntryWeights:
    """What makes entries, or their keys, of the projections of positions; float32."""

    offsets: Tensor
    """[series * rate, size], what is added to logits at each place of an entry, first of the positions before it."""
    norm: Tensor
    """[size]"""


@dataclass(frozen=True)
class CompressedAttentionWeights:
    """The weights of one layer. Rotated elements, which files have last, are the first of a vector, in the order of
    `rotary_order`.
    """

    first: Linear
    """Makes, of hidden states, the low-rank query vector, then the key."""
    query_norm: Tensor
    """[query_dim] float32, as norms below, which multiply before they round."""
    queries: Linear
    """[heads of this rank * head_dim, query_dim]"""
    key_norm: Tensor
    """[head_dim] float32"""
    sinks: Tensor
    """[heads of this rank] float32, logits of attention sinks."""
    groups: Tensor
    """[groups of this rank, heads of a group * head_dim, out_rank], from what heads of a group read."""
    out: Linear
    """Output projection, row parallel."""
    parts: Linear | None = None
    """Never quantised: makes, of hidden states, what entries are made of and the logits of its weights, for each
    series, then the same for keys of entries. None, as `entries`: there are none."""
    entries: EntryWeights | None = None
    index_entries: EntryWeights | None = None
    """None, as the next ones: there is no indexer."""
    index_queries: Linear | None = None
    """[index heads * index size, query_dim]"""
    index_weights: Linear | None = None
    """[index heads, hidden], never quantised: makes the weight of each head."""


def load_compressed_attention(
    checkpoint: Checkpoint, layer: int, spec: CompressedAttentionSpec, heads: HeadSplit
) -> CompressedAttentionWeights:
    """Reads the heads of this rank. Raises ModelFilesError."""
    names, hidden, size = checkpoint.names, checkpoint.spec.hidden_size, spec.head_dim
    order, held = _order(spec, size), range(heads.q_start, heads.q_stop)
    low_rank = RowBlock(checkpoint.inside(layer, names.q_a), spec.query_dim, ((0, spec.query_dim),))
    key = RowBlock(checkpoint.inside(layer, names.kv_a), size, ((0, size),), order)
    queries = RowBlock(checkpoint.inside(layer, names.q_b), spec.num_heads * size, ranges(held, size), order)
    sinks = checkpoint.source.read(
        checkpoint.inside(layer, names.sinks), (spec.num_heads,), Slice(0, held.start, held.stop), torch.float32
    )
    of_head = spec.out_groups * spec.out_rank
    columns = (held.start * of_head // spec.num_heads, held.stop * of_head // spec.num_heads)
    return CompressedAttentionWeights(
        column_parallel(checkpoint, [low_rank, key], hidden, False),
        _norm(checkpoint, layer, names.q_a_norm, spec.query_dim),
        column_parallel(checkpoint, [queries], spec.query_dim, False),
        _norm(checkpoint, layer, names.kv_a_norm, size)[list(order)],
        sinks,
        _groups(checkpoint, layer, spec, columns),
        row_parallel(checkpoint, checkpoint.inside(layer, names.out), (hidden, of_head), columns, False),
        *_of_entries(checkpoint, layer, spec),
    )


def _order(spec: CompressedAttentionSpec, size: int) -> tuple[int, ...]:
    """Returns the order of the elements of a vector of this size, of which RoPE rotates the last: these come first."""
    before = size - spec.rope_dim
    return (*(before + each for each in rotary_order(spec.rope, spec.rope_dim)), *range(before))


def _norm(checkpoint: Checkpoint, layer: int, name: str, size: int) -> Tensor:
    return checkpoint.source.read(f"{checkpoint.inside(layer, name)}.weight", (size,), dtype=torch.float32)


def _groups(checkpoint: Checkpoint, layer: int, spec: CompressedAttentionSpec, rows: tuple[int, int]) -> Tensor:
    """Reads the matrices of this rank's groups with 16 bits. Inputs come in the order of keys."""
    inputs = spec.num_heads // spec.out_groups * spec.head_dim
    block = RowBlock(checkpoint.inside(layer, checkpoint.names.out_a), spec.out_groups * spec.out_rank, (rows,))
    stored = reader_of(checkpoint, block.name).dense_rows(block, inputs)
    by_head = stored.view(-1, spec.out_rank, inputs // spec.head_dim, spec.head_dim)
    return by_head[..., list(_order(spec, spec.head_dim))].flatten(2).transpose(1, 2).contiguous()


def _of_entries(
    checkpoint: Checkpoint, layer: int, spec: CompressedAttentionSpec
) -> tuple[Linear | None, EntryWeights | None, EntryWeights | None, Linear | None, Linear | None]:
    """Reads the fields from `parts` on."""
    if not spec.rate:
        return None, None, None, None, None
    names, hidden = checkpoint.names, checkpoint.spec.hidden_size
    blocks = _parts(checkpoint, layer, spec, names.compressor, spec.head_dim)
    entries, indexer = _entries(checkpoint, layer, spec, names.compressor, spec.head_dim), spec.indexer
    if indexer is None:
        return _plain(checkpoint, blocks, hidden), entries, None, None, None
    blocks += _parts(checkpoint, layer, spec, names.index_compressor, indexer.head_dim)
    weights = RowBlock(checkpoint.inside(layer, names.index_weights), indexer.num_heads, ((0, indexer.num_heads),))
    return (
        _plain(checkpoint, blocks, hidden),
        entries,
        _entries(checkpoint, layer, spec, names.index_compressor, indexer.head_dim),
        column_parallel(checkpoint, [_index_queries(checkpoint, layer, spec, indexer)], spec.query_dim, False),
        _plain(checkpoint, [weights], hidden),
    )


def _plain(checkpoint: Checkpoint, blocks: list[RowBlock], inputs: int) -> Linear:
    """Reads rows with 16 bits, however they are stored."""
    rows = torch.cat([reader_of(checkpoint, block.name).dense_rows(block, inputs) for block in blocks])
    return Dense(rows, site=Site(tuple(blocks), inputs))


def _index_queries(
    checkpoint: Checkpoint, layer: int, spec: CompressedAttentionSpec, indexer: EntryIndexerSpec
) -> RowBlock:
    rows = indexer.num_heads * indexer.head_dim
    name = checkpoint.inside(layer, checkpoint.names.index_q)
    return RowBlock(name, rows, ((0, rows),), _order(spec, indexer.head_dim))


def _parts(checkpoint: Checkpoint, layer: int, spec: CompressedAttentionSpec, name: str, size: int) -> list[RowBlock]:
    """Returns where the rows of both projections are, in the order of `CompressedAttentionWeights.parts`. Files have
    those for the next entry first.
    """
    whole, order = checkpoint.inside(layer, name), _order(spec, size)
    return [
        RowBlock(f"{whole}.{part}", spec.series * size, ((place * size, (place + 1) * size),), order)
        for place in reversed(range(spec.series))
        for part in ("kv_proj", "gate_proj")
    ]


def _entries(checkpoint: Checkpoint, layer: int, spec: CompressedAttentionSpec, name: str, size: int) -> EntryWeights:
    whole, order = checkpoint.inside(layer, name), list(_order(spec, size))
    shape = (spec.rate, spec.series * size)
    offsets = checkpoint.source.read(f"{whole}.position_bias", shape, dtype=torch.float32)
    by_series = offsets.view(spec.rate, spec.series, size).transpose(0, 1).flatten(0, 1)
    return EntryWeights(by_series[:, order].contiguous(), _norm(checkpoint, layer, f"{name}.kv_norm", size)[order])

"""Input embedding and LM head, before and after the layers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...config.sizes import cuts_embedding, cuts_table
from ...errors import ModelFilesError
from ...weights import Slice
from .blocks import RowBlock
from .checkpoint import Checkpoint, Matrices
from .linear import Dense, Linear, Split
from .loading import column_parallel
from .readers import reader_of
from .sites import Site
from .split import padded_rows, vocabulary_shard

_LEAST_LENGTH = 1e-7
"""By which columns are divided at least."""


@dataclass(frozen=True)
class EmbeddingWeights:
    """The embedding: whole on every rank, or a vocabulary shard (`cuts_embedding`)."""

    tokens: Tensor
    """[vocabulary, hidden]; of a shard, its rows between two rows of zeros."""
    positions: Tensor | None = None
    """[rows, hidden], learned or sinusoidal."""
    first: int | None = None
    """The id of the shard's first row. None: the embedding is whole."""
    module: str = ""
    """The module of which the rows of `tokens` are stored so; empty: there is none."""

    @property
    def span(self) -> tuple[int, int]:
        """The ids that it has."""
        first = self.first
        return (0, len(self.tokens)) if first is None else (first, first + len(self.tokens) - 2)

    def rows(self, start: int, stop: int) -> Tensor:
        """Returns the rows of ids from `start` to `stop`, which must be in the shard."""
        offset = 0 if self.first is None else 1 - self.first
        return self.tokens[start + offset : stop + offset]


def load_embedding(checkpoint: Checkpoint) -> EmbeddingWeights:
    """Reads the embedding, or this rank's shard of it. Raises ModelFilesError."""
    spec, names, source = checkpoint.spec, checkpoint.names, checkpoint.source
    shape = spec.vocab_size, spec.embedding.width or spec.hidden_size
    is_cut = cuts_embedding(spec, checkpoint.dtype.itemsize, checkpoint.group.world_size)
    tokens, first = _table(checkpoint, names.embedding, shape, is_cut)
    if spec.embedding.width:
        shape = (spec.hidden_size, spec.embedding.width)
        tokens = _product(tokens, source.read(f"{checkpoint.outside(names.project_in)}.weight", shape).t())
    module = "" if spec.embedding.width else checkpoint.outside(names.embedding)
    if not (rows := spec.embedding.positions):
        return EmbeddingWeights(tokens, None, first, module)
    if spec.embedding.sinusoidal:
        positions = source.empty((rows, spec.hidden_size)).copy_(_sinusoids(rows, spec.hidden_size))
    else:
        positions = source.read(f"{checkpoint.outside(names.positions)}.weight", (rows, spec.hidden_size))
    return EmbeddingWeights(tokens, positions, first, module)


def _sinusoids(rows: int, width: int) -> Tensor:
    """[rows, width] float32: sines of a position times frequencies that fall from 1 to 1 / 10,000, then their cosines
    (Vaswani et al., 2017, as in tensor2tensor).
    """
    half = width // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10_000) / (half - 1)))
    angles = torch.arange(rows).float()[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def load_layer_embedding(checkpoint: Checkpoint, rows: int, width: int) -> EmbeddingWeights:
    """Reads the vectors of all layers [rows, width] by token id, or this rank's shard. Raises ModelFilesError."""
    is_cut = cuts_table(rows * width * checkpoint.dtype.itemsize, checkpoint.group.world_size)
    tokens, first = _table(checkpoint, checkpoint.names.layer_embedding, (rows, width), is_cut)
    return EmbeddingWeights(tokens, None, first)


def _table(checkpoint: Checkpoint, name: str, shape: tuple[int, int], is_cut: bool) -> tuple[Tensor, int | None]:
    """Reads a table by token id, or this rank's shard: its rows between two rows of zeros, and the first one's id."""
    source, name = checkpoint.source, f"{checkpoint.outside(name)}.weight"
    if not is_cut:
        return source.read(name, shape), None
    # The shard holds the ids whose logits this rank computes, so tied weights exist once.
    first, stop, _ = vocabulary_shard(shape[0], checkpoint.group.rank, checkpoint.group.world_size)
    tokens = source.empty((stop - first + 2, shape[1])).zero_()
    tokens[1:-1] = source.read(name, shape, Slice(0, first, stop))
    return tokens, first


def load_head(checkpoint: Checkpoint, embedding: EmbeddingWeights) -> Linear:
    """Reads this rank's rows of the LM head (`vocabulary_shard`). Raises ModelFilesError."""
    spec, name, source = checkpoint.spec, checkpoint.head, checkpoint.source
    if spec.head.tied and spec.embedding.width:
        name = checkpoint.outside(checkpoint.names.embedding)
    start, stop, padding = vocabulary_shard(spec.vocab_size, checkpoint.group.rank, checkpoint.group.world_size)
    # Configurations that leave the LM head unquantised name it `lm_head`, and some families have other names.
    reader = reader_of(checkpoint, name)
    quantised = not spec.head.tied and reader.has_codes(name)
    if quantised and not (spec.head.unit_rows or spec.head.unit_columns):
        shape = spec.vocab_size, spec.hidden_size
        return load_quantised_head(checkpoint, name, shape, (start, stop), padding, spec.head.bias)
    if spec.head.tied and not spec.embedding.width:
        weight = embedding.rows(start, stop)
    elif quantised or source.has(f"{name}.weight"):
        weight = _rows(checkpoint, name, start, stop)
    else:
        raise ModelFilesError(
            f"tensor `{name}.weight` is in none of the model's safetensors files; where the output matrix is the "
            "embedding, config.json must set `tie_word_embeddings` to true"
        )
    if spec.embedding.width:
        project = checkpoint.outside(checkpoint.names.project_out)
        weight = _product(weight, source.read(f"{project}.weight", (spec.embedding.width, spec.hidden_size)))
    if spec.head.unit_rows:
        weight = functional.normalize(weight)
    if spec.head.unit_columns:
        weight = (weight.float() / _column_lengths(checkpoint, name).clamp(min=_LEAST_LENGTH)).to(weight.dtype)
    bias = None
    if spec.head.bias:
        bias = padded_rows(source.read(f"{name}.bias", (spec.vocab_size,), Slice(0, start, stop)), padding)
    tied = checkpoint.outside(checkpoint.names.embedding) if spec.head.tied else ""
    block = RowBlock(name, spec.vocab_size, ((start, stop),))
    site = Site((block,), spec.hidden_size, padding=padding, stored_as=tied)
    is_stored = not (spec.embedding.width or spec.head.unit_rows or spec.head.unit_columns)
    return Dense(padded_rows(weight, padding), bias, site=site if is_stored else None)


def load_class_head(checkpoint: Checkpoint) -> Linear:
    """Reads the rows of all classes, which every rank has: they are few. Raises ModelFilesError."""
    classes, hidden = checkpoint.spec.head.classes, checkpoint.spec.hidden_size
    reader, name = reader_of(checkpoint, checkpoint.head), checkpoint.head
    if reader.has_codes(name):
        weight = reader.dense_rows(RowBlock(name, classes, ((0, classes),)), hidden)
    else:
        weight = checkpoint.source.read(f"{name}.weight", (classes, hidden))
    _, _, padding = vocabulary_shard(classes, 0, 1)
    return Dense(padded_rows(weight, padding))


def _rows(checkpoint: Checkpoint, name: str, start: int, stop: int) -> Tensor:
    """Rows of the output matrix, dequantised."""
    spec, reader = checkpoint.spec, reader_of(checkpoint, name)
    if reader.has_codes(name):
        return reader.dense_rows(RowBlock(name, spec.vocab_size, ((start, stop),)), spec.hidden_size)
    width = spec.embedding.width or spec.hidden_size
    return checkpoint.source.read(f"{name}.weight", (spec.vocab_size, width), Slice(0, start, stop))


def _column_lengths(checkpoint: Checkpoint, name: str) -> Tensor:
    """[hidden] float32, of all ranks' rows: each rank reads them all, a shard at a time."""
    vocabulary, ranks = checkpoint.spec.vocab_size, checkpoint.group.world_size
    shards = (vocabulary_shard(vocabulary, rank, ranks) for rank in range(ranks))
    parts = [_rows(checkpoint, name, start, stop).float().square().sum(dim=0) for start, stop, _ in shards]
    return torch.stack(parts).sum(dim=0).sqrt()


def load_quantised_head(
    checkpoint: Matrices, name: str, shape: tuple[int, int], rows: tuple[int, int], padding: int, bias: bool
) -> Linear:
    """These rows of a stored matrix [vocabulary, hidden], with rows of zeros behind them. Raises ModelFilesError."""
    parts: list[Linear] = []
    if rows[1] > rows[0]:
        parts.append(column_parallel(checkpoint, [RowBlock(name, shape[0], (rows,))], shape[1], bias))
    if padding or not parts:
        parts.append(Dense(checkpoint.source.empty((padding, shape[1])).zero_()))
    if len(parts) == 1:
        return parts[0]
    first, site = parts[0].bias, Site((RowBlock(name, shape[0], (rows,)),), shape[1], padding=padding)
    return Split(parts, None if first is None else padded_rows(first, padding), site=site)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies two matrices that are applied in sequence into one, rounded once."""
    return (a.float() @ b.float()).to(a.dtype)


def rounded(value: float, dtype: torch.dtype) -> float:
    """Rounds `value` to type `dtype`."""
    return float(torch.tensor(value, dtype=dtype))

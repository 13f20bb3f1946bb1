"""Weights of the three parts of a decoder: before, inside and after the transformer layers."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from .linear import Linear


@dataclass(frozen=True)
class PreLayerWeights:
    """The embedding, whole on every rank.

    Cutting it would save at most a few percent of the weights' memory and cost a collective in every step.
    """

    embedding: Tensor
    """[vocabulary, hidden]"""


@dataclass(frozen=True)
class TransformerLayerWeights:
    """One layer: Q, K and V heads and the MLP's inner dimension are shared among the ranks, norms are whole."""

    input_norm: Tensor
    """[hidden]"""
    qkv: Linear
    """Column parallel: query, key and value heads of this rank, in this order."""
    out: Linear
    """Row parallel."""
    post_attention_norm: Tensor
    """[hidden]"""
    gate_up: Linear
    """Column parallel: gate rows, then up rows."""
    down: Linear
    """Row parallel."""
    q_norm: Tensor | None = None
    """[head_dim], for models that normalise each query head."""
    k_norm: Tensor | None = None
    """[head_dim], likewise for keys: both or neither."""


@dataclass(frozen=True)
class PostLayerWeights:
    """Final norm, whole, and this rank's rows of the output matrix."""

    norm: Tensor
    """[hidden]"""
    lm_head: Linear
    """Column parallel, equally many rows on every rank (`vocabulary_shard`)."""


def vocabulary_shard(vocab_size: int, rank: int, world_size: int) -> tuple[int, int, int]:
    """Start and end of a rank's part of the vocabulary, and how many rows of padding follow.

    Gathering needs parts of one size; padding only ever lies behind the vocabulary's end.
    """
    size = -(-vocab_size // world_size)
    start, stop = (min(bound * size, vocab_size) for bound in (rank, rank + 1))
    return start, stop, size - (stop - start)


def padded_rows(matrix: Tensor, padding: int) -> Tensor:
    """`matrix` with zero rows behind it; itself when there is nothing to add."""
    return functional.pad(matrix, (0, 0, 0, padding)) if padding else matrix

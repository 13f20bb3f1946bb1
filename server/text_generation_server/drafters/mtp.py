"""Layers of a checkpoint that guess further tokens (multi-token prediction, MTP; DeepSeek-V3, 2024): here the first one
drafts, one token after the other.

With e the embedding of the token of a pair (`chain.py`), which some models take as 0 for the first pair, h the last
hidden states of the model, or of this layer behind its own drafts, both normalised as the head reads them, and * for
norms of this layer:

    x = W [e*; h*],  d = (layer like the last one of the model with attention)(x)*,  logits = head of the model(d)

Each rank has its shard of the layer, as of those of the model. Called in every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.mtp import MtpConfig
from ..distributed import TensorParallelGroup
from ..layers.infer import AddNorm, CacheShape, Embedding, Head, InferState, Layer, Norm, Taps
from ..layers.rope import RopeTable
from ..layers.weights import Activations, Dense
from .chain import ChainDrafter, Made
from .whole import whole_logits


@dataclass(frozen=True)
class MtpLayer:
    """What is read of the layer."""

    embedded_norm: Norm
    hidden_norm: Norm
    joined: Dense
    """[hidden, 2 * hidden], whole on every rank."""
    layer: Layer
    last: AddNorm
    caches: Sequence[CacheShape]
    ropes: Sequence[RopeTable]


@dataclass(frozen=True)
class ModelEnds:
    """What it shares with the model."""

    taps: Taps
    """With the residual stream at the end of the last layer."""
    final_norm: Norm
    embedding: Embedding
    head: Head


class MtpDrafter(ChainDrafter):
    """See `Drafter`."""

    kind = "mtp"

    def __init__(self, config: MtpConfig, own: MtpLayer, ends: ModelEnds, group: TensorParallelGroup) -> None:
        """Each rank of `group` has a shard of the vocabulary."""
        self._config = config
        self._own = own
        self._ends = ends
        self._group = group
        self._ids = torch.arange(ends.head.vocabulary.vocab_size, device=own.joined.weight.device)
        self.caches = own.caches
        self.feature_size = own.joined.outputs
        self.bytes_per_position = sum(table.bytes_per_position for table in own.ropes)

    def reserve_positions(self, count: int) -> None:
        """See `Drafter`."""
        for table in self._own.ropes:
            table.resize(count)

    def read(self, features: Tensor) -> None:
        """See `Drafter`."""
        self._ends.final_norm.apply(self._ends.taps.take(), features)

    def _pass(self, ids: Tensor, state: InferState, hidden: Tensor, kept: Tensor | None) -> Made:
        """See `ChainDrafter`."""
        if kept is not None and not len(kept):
            # Operators do not take 0 tokens.
            kept = ids.new_zeros(1)
        embedded = self._ends.embedding.rows(ids)
        if self._config.names.masks_first:
            embedded.masked_fill_((state.positions == 0)[:, None], 0)
        own, normed = self._own, torch.empty_like(hidden)
        own.embedded_norm.apply(embedded, embedded)
        own.hidden_norm.apply(hidden, normed)
        parts = (normed, embedded) if self._config.names.hidden_first else (embedded, normed)
        x, residual = own.layer.forward(own.joined.apply(Activations(torch.cat(parts, dim=1))), None, state, kept)
        read, _ = own.last.read(x, residual)
        return Made(read.x, read.x)

    def _logits(self, normalised: Tensor) -> Tensor:
        """See `ChainDrafter`."""
        return whole_logits(self._ends.head, normalised, self._group)

"""Token embedding: from token ids to hidden states."""

import copy

from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from ...config.spec import EmbeddingSpec
from ...distributed import TensorParallelGroup
from ..weights import AdaptedEmbedding, Adapting, EmbeddingWeights, rounded
from .norm import Norm
from .state import InferState

KEPT = "embedding"
"""Where a step keeps what layers read beside the residual stream."""


class Embedding:
    """Looks up token ids, and learned positions where the model has them, in tables. Where each rank has a shard of the
    table, the ranks all-reduce what they find: a rank finds zeros for ids of other shards, so the sum is the row to the
    bit.
    """

    def __init__(
        self, spec: EmbeddingSpec, weights: EmbeddingWeights, norm: Norm | None, group: TensorParallelGroup
    ) -> None:
        self._group = group
        self.dtype = weights.tokens.dtype
        self.device = weights.tokens.device
        self._scale = rounded(spec.scale, self.dtype) if spec.scale_rounded else spec.scale
        self._first_position = spec.first_position
        self._is_kept = spec.kept
        self._weights = weights
        self._norm = norm
        self._adapted: AdaptedEmbedding | None = None

    def adapted(self, adapting: Adapting, changes: AdaptedEmbedding | None) -> "Embedding":
        """Returns an embedding for tokens with adapters, which shares everything else with this one."""
        made = copy.copy(self)
        made._adapted = changes
        made._norm = None if self._norm is None else self._norm.adapted(adapting)
        return made

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """Turns ids [T] int64, which must lie in the vocabulary, into hidden states [T, hidden]. Rows of the media pool
        take the place of what was looked up and scaled.
        """
        x = self.look_up(input_ids)
        if state.media is not None:
            x = state.media.embed(x)
        if self._weights.positions is not None:
            x.add_(functional.embedding(state.positions + self._first_position, self._weights.positions))
        if self._norm is not None:
            self._norm.apply(x, x)
        if self._is_kept:
            # Layers reuse the memory of `x`.
            state.made[KEPT] = x.clone()
        return x

    def look_up(self, input_ids: Tensor) -> Tensor:
        """Returns the scaled rows [T, hidden] of ids [T] int64, whatever stands in the media pool."""
        x = self.rows(input_ids)
        if self._scale != 1.0:
            x.mul_(self._scale)
        return x

    def rows(self, input_ids: Tensor) -> Tensor:
        """Returns the rows [T, hidden] of ids [T] int64 as they are stored."""
        tokens, first = self._weights.tokens, self._weights.first
        ids = input_ids if first is None else (input_ids - (first - 1)).clamp_(0, len(tokens) - 1)
        x = tokens.new_empty(len(ids), tokens.shape[1])
        kernels.embed(ids, tokens, x)
        if self._adapted is not None:
            self._adapted.replace(ids, x)
        if first is not None:
            self._group.all_reduce(x)
        if self._adapted is not None:
            self._adapted.add(input_ids, x)
        return x

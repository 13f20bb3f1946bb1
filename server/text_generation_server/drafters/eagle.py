"""EAGLE-3 heads: one layer that reads hidden states of the model and drafts tokens one by one (Li et al., 2025).

With e the embedding of the token of a pair (`chain.py`), h the hidden states of some layers of the model, joined by
`fc`, where they are not the head's own, and * for norms:

    x = [e*; h*],  r = h + attention(x),  d = r + ffn(r*),  logits = head(d*)

Called in every step. A pass reads the weights of the layer and the head, of an 8B some 0.7 GB, the embedding's rows,
and keys and values of the context, 4 KB a position. Where nothing is drafted it reads the weights of `fc`, keys and
values alone, 0.14 GB.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..config.drafter import EagleConfig
from ..distributed import TensorParallelGroup
from ..layers.infer import AddNorm, Attention, CacheShape, DenseFeedForward, Embedding, InferState, Norm, Taps
from ..layers.rope import RopeTable
from ..layers.weights import Activations, HeadSplit, NormWeights
from .chain import ChainDrafter, Made
from .eagle_weights import EagleWeights


class EagleDrafter(ChainDrafter):
    """See `Drafter`."""

    kind = "eagle3"

    def __init__(self, config: EagleConfig, weights: EagleWeights, taps: Taps, embedding: Embedding) -> None:
        """`taps` have what it reads of the model, of which `embedding` is."""
        self._config = config
        self._weights = weights
        self._ids = weights.ids
        self._taps = taps
        self._embedding = embedding
        alone = TensorParallelGroup(0, 1, embedding.device)
        spec = config.attention
        heads = HeadSplit.of(spec.num_heads, spec.num_kv_heads, alone)
        self._rope = RopeTable(spec.rope, spec.head_dim, embedding.device)
        self._attention = Attention(0, spec, weights.attention, heads, self._rope, alone)
        self._before_ffn = AddNorm(alone, self._norm(weights.ffn_norm))
        self._ffn = DenseFeedForward(config.ffn, weights.ffn)
        self._last = AddNorm(alone, self._norm(weights.norm))
        self._embedded_norm, self._hidden_norm = (self._norm(x) for x in (weights.embedded_norm, weights.hidden_norm))
        self.caches: Sequence[CacheShape] = (self._attention.cache,)
        self.feature_size = config.hidden_size
        self.bytes_per_position = self._rope.bytes_per_position

    def reserve_positions(self, count: int) -> None:
        """See `Drafter`."""
        self._rope.resize(count)

    def read(self, features: Tensor) -> None:
        """See `Drafter`: it joins hidden states of several layers."""
        hidden, norms = self._taps.take(), self._weights.feature_norms
        if norms:
            parts = hidden.chunk(len(norms), dim=1)
            normed = [self._normed(self._norm(each), part) for each, part in zip(norms, parts, strict=True)]
            hidden = torch.cat(normed, dim=1)
        features.copy_(self._weights.fc.apply(Activations(hidden)))

    def _pass(self, ids: Tensor, state: InferState, hidden: Tensor, kept: Tensor | None) -> Made:
        """See `ChainDrafter`."""
        embedded, normed = self._normed(self._embedded_norm, self._embed(ids)), self._normed(self._hidden_norm, hidden)
        residual = normed if self._config.norm_before_residual else hidden
        joined = Activations(torch.cat([embedded, normed], dim=1))
        if kept is not None and not len(kept):
            self._attention.keep(joined, state)
            return Made(residual[:0], residual[:0])
        heads = self._attention.forward(joined, state)
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        read, residual = self._before_ffn.read(self._attention.project(heads, state), residual)
        read, residual = self._last.read(self._ffn.forward(read, state), residual)
        return Made(read.x, read.x if self._config.norm_output else residual)

    def _logits(self, normalised: Tensor) -> Tensor:
        """See `ChainDrafter`."""
        return self._weights.head.apply(Activations(normalised))

    def _embed(self, ids: Tensor) -> Tensor:
        if self._weights.embedding is not None:
            return functional.embedding(ids, self._weights.embedding)
        return self._embedding.rows(ids)

    def _norm(self, weights: NormWeights) -> Norm:
        return Norm(self._config.norm, weights)

    @staticmethod
    def _normed(norm: Norm, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        norm.apply(x, out)
        return out

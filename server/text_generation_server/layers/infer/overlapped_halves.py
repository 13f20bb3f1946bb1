"""Overlapped halves of large steps: the all-reduce of one runs beside the GEMMs of the other.

Between two attentions every token is computed by itself, so the halves alternate there: output projection, all-reduce,
feed-forward network, all-reduce, and the QKV projection of the next attention (as the two micro-batches of DeepSeek-V3
and the slices of Megatron-LM's overlap do). Attention itself sees all tokens at once.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...distributed import TensorParallelGroup
from .attention import Attention
from .feed_forward import DenseFeedForward
from .fusion import SublayerOutput
from .state import InferState
from .transformer import Layer, TransformerLayer

_TILES = 512
"""The first half has a multiple of so many tokens: GEMMs of other numbers are up to 12 % slower per token."""


class OverlappedHalves:
    """Computes all layers in overlapped halves, where that pays."""

    def __init__(self, group: TensorParallelGroup, layers: Sequence[Layer]) -> None:
        self._group = group
        # Experts would be read once for each half.
        dense = [
            (each, each.mixer)
            for each in layers
            if isinstance(each, TransformerLayer)
            and type(each.mixer) is Attention
            and isinstance(each.ffn, DenseFeedForward)
        ]
        self._layers = dense if len(dense) == len(layers) > 1 else []

    def cuts(self, x: Tensor, state: InferState) -> Sequence[slice]:
        """Returns the tokens of each half of a step with hidden states like `x` [T, hidden], or nothing for a step that
        is faster whole.
        """
        tokens = x.shape[0]
        middle = (tokens + _TILES) // (2 * _TILES) * _TILES
        small = tokens * x.shape[1] * x.element_size() < self._group.overlapped_bytes
        if small or not self._layers or not 0 < middle < tokens or state.deterministic:
            return ()
        return slice(0, middle), slice(middle, tokens)

    def forward(
        self, x: Tensor, state: InferState, cuts: Sequence[slice], kept: Tensor | None
    ) -> tuple[SublayerOutput, Tensor]:
        """Computes all layers, the last one as `kept` says (`TransformerLayer.forward`)."""
        first, attention = self._layers[0]
        read, residual = first.before_mixer.read(x, None)
        qkv = attention.project_qkv(read, state)
        for place_of_layer, ((layer, attention), (following, next_attention)) in enumerate(pairwise(self._layers)):
            heads = attention.attend(qkv, state)
            sums = [
                self._group.begin_all_reduce(attention.project(heads[cut], state), place)
                for place, cut in enumerate(cuts)
            ]
            for index, cut in enumerate(cuts):
                read, _ = layer.before_ffn.read_sum(sums[index], residual[cut])
                sums[index] = self._group.begin_all_reduce(layer.ffn.forward(read, state), len(cuts) + index)
            if state.media is not None:
                state.media.deepen(place_of_layer, residual)
            products: list[Tensor] = []
            for under_way, cut in zip(sums, cuts, strict=True):
                read, _ = following.before_mixer.read_sum(under_way, residual[cut])
                products.append(next_attention.project_qkv(read, state))
            qkv = torch.cat(products)
        last, attention = self._layers[-1]
        return last.after_mixer(attention.attend(qkv, state), residual, state, kept)

"""Inputs of each layer (Gemma 3n and 4, 2025), beside the residual stream.

    inputs = (norm(M x / sqrt(hidden)) + E[id] * sqrt(width)) / sqrt(2)         for each layer, x: the embedding
    residual += norm(P (activation(G residual) * input of the layer))

Every rank computes them whole: the matrices are small, and sharing them would cost an all-reduce in every layer.
"""

import math
from typing import cast

import torch
from torch import Tensor

from ...config.spec import EmbeddingSpec, PerLayerSpec
from ...distributed import TensorParallelGroup
from ..weights import Activations, LayerInputWeights, PerLayerWeights, activate
from .embedding import Embedding
from .norm import Norm
from .state import InferState


class PerLayerInputs:
    """Makes the inputs of all layers, once a step."""

    def __init__(self, spec: PerLayerSpec, weights: PerLayerWeights, group: TensorParallelGroup) -> None:
        self._width = spec.width
        self._spec = spec
        self._projection = weights.projection
        self._norm = Norm(spec.norm, weights.norm)
        scaled = EmbeddingSpec(scale=spec.width**0.5, scale_rounded=True)
        self._vectors = Embedding(scaled, weights.vectors, None, group)

    def make(self, input_ids: Tensor, embedded: Tensor, state: InferState) -> None:
        """Keeps, for the layers, what `embedded` [T, hidden], the embedding of `input_ids` [T], gives them."""
        x = self._projection.apply(Activations(embedded), state.linear_block)
        x.mul_(embedded.shape[1] ** -0.5)
        by_layer = x.view(-1, self._width)
        self._norm.apply(by_layer, by_layer)
        if state.media is not None:
            input_ids = input_ids.masked_fill(state.media.present[:, 0], self._spec.media_id)
        if self._spec.outside_id is not None:
            input_ids = input_ids.masked_fill(input_ids >= self._spec.vocab_size, self._spec.outside_id)
        x.add_(self._vectors.look_up(input_ids)).mul_(math.sqrt(0.5))
        state.made[PerLayerInputs] = x.view(len(x), -1, self._width)


class LayerInput:
    """Adds the input of one layer to the residual stream."""

    def __init__(self, index: int, spec: PerLayerSpec, weights: LayerInputWeights) -> None:
        """`index` is the number of the layer."""
        self._index = index
        self._activation = spec.activation
        self._weights = weights
        self._norm = Norm(spec.norm, weights.norm)

    def of(self, residual: Tensor, state: InferState, kept: Tensor | None) -> Tensor:
        """Returns what is added to `residual` [N, hidden]. `kept` has the meaning of `TransformerLayer.forward`."""
        inputs = cast("Tensor", state.made[PerLayerInputs])[:, self._index]
        if kept is not None:
            inputs = inputs.index_select(0, kept)
        gate = self._weights.gate.apply(Activations(residual), state.linear_block)
        activate(gate, self._activation, state.linear_block)
        out = self._weights.out.apply(Activations(torch.mul(gate, inputs)), state.linear_block)
        self._norm.apply(out, out)
        return out

"""Layers of Gemma 3n: several residual streams (AltUp, Baykal et al., 2023), of which each layer computes one, and
low-rank matrices beside attention (LAuReL, Menghani et al., 2024).

    predicted = x + C(m(x_a)) x,                   a: the active stream, C: coefficients of each token, m: its mixes
    r = norm(predicted_a),   y = (predicted_a + norm(attention r) + r + norm(U D r)) / sqrt(2)
    y += norm(ffn(norm(y)))
    x = predicted + c(m(y)) (y - predicted_a)
    x_i += input of the layer, of x_a                  for each i but the first

Streams lie side by side, `[T, streams, hidden]`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from ...config.streams import AltUpSpec
from ...distributed import TensorParallelGroup
from ..weights import Activations, Adapting, AltUpEndWeights, AltUpWeights, Linear, each_alone, in_blocks
from .feed_forward import FeedForward
from .fusion import SublayerOutput
from .mixer import Mixer
from .norm import Norm
from .per_layer import LayerInput
from .state import InferState
from .streams import Carried, StreamEnds, of_tokens

_LEAST_SQUARE = 1e-5
"""By which a projected stream is divided at least, as a mean of squares."""


class AltUp:
    """A `Connection` around one layer, which computes the active stream; and what the layer does beside attention."""

    def __init__(self, spec: AltUpSpec, weights: AltUpWeights, norm: Norm, router_norm: Norm) -> None:
        """`norm` is that of the low-rank matrices."""
        self._count = spec.count
        self._active = spec.active
        self._weights = weights
        self._norm = norm
        self._router_norm = router_norm

    def read(self, streams: Tensor, state: InferState) -> tuple[Tensor, Carried]:
        """See `Connection`. It carries what the layer expects of all streams, and returns the active one of these."""
        coefs = self._coefficients(streams[:, self._active], self._weights.prediction, state.linear_block)
        predicted = torch.empty_like(streams)
        kernels.mix_streams(streams, coefs.view(-1, self._count, self._count), streams, predicted)
        return predicted[:, self._active], (predicted,)

    def write(self, carried: Carried, y: Tensor, state: InferState) -> Tensor:
        """See `Connection`. It corrects the streams in place."""
        (predicted,) = carried
        coefs = self._coefficients(y, self._weights.correction, state.linear_block).add_(1.0)
        error = y - predicted[:, self._active]
        kernels.mix_streams(predicted, coefs[:, :, None], error[:, None], predicted)
        return predicted

    def scaled(self, x: Tensor) -> Tensor:
        """Returns the active one of the streams `x`, as the input of the layer reads it, [T, hidden]."""
        active, scale = x[:, self._active], self._weights.scale
        return active.contiguous() if scale is None else active * scale

    def beside(self, x: Activations, state: InferState) -> Tensor:
        """Returns `x` [T, hidden] and what the low-rank matrices add to it."""
        low = self._weights.down.apply(x, state.linear_block)
        out = self._weights.up.apply(Activations(low), state.linear_block)
        self._norm.apply(out, out)
        return out.add_(x.x)

    def _coefficients(self, x: Tensor, matrix: Tensor, block: int | None) -> Tensor:
        """Turns a stream [T, hidden] into float32 coefficients [T, rows of `matrix`]."""
        read = x.new_empty(x.shape)
        self._router_norm.apply(x, read)
        mixes = in_blocks((read,), block, lambda each: functional.linear(each, self._weights.router)).float()
        for (part,) in each_alone(block, mixes):
            part.tanh_()
        # Mixes are rounded to the type of the model, as coefficients of other layers are.
        mixes = mixes.to(x.dtype).float()
        return in_blocks((mixes,), block, lambda each: functional.linear(each, matrix))


class AltUpEnd:
    """A `StreamEnd`: matrices of all streams but the first, whose results get the length of the first stream."""

    def __init__(self, weights: Sequence[AltUpEndWeights]) -> None:
        self._matrices = [each.matrix for each in weights]

    def made(self, embedded: Tensor, state: InferState) -> Tensor:
        """See `StreamEnd`."""
        others = [self._projected(matrix, embedded, embedded, state) for matrix in self._matrices]
        return torch.stack([embedded, *others], dim=1)

    def joined(self, streams: Tensor, state: InferState) -> Tensor:
        """See `StreamEnd`: it is their mean."""
        first, *others = (each.contiguous() for each in streams.unbind(1))
        pairs = zip(self._matrices, others, strict=True)
        parts = [first, *(self._projected(matrix, each, first, state) for matrix, each in pairs)]
        return torch.stack(parts).mean(dim=0)

    def _projected(self, matrix: Linear, x: Tensor, like: Tensor, state: InferState) -> Tensor:
        out = matrix.apply(Activations(x), state.linear_block)
        for part, its_like in each_alone(state.linear_block, out, like):
            length = its_like.float().square().mean(dim=1, keepdim=True).sqrt()
            own = part.float().square().mean(dim=1, keepdim=True).clamp(min=_LEAST_SQUARE).sqrt()
            part.mul_(length / own)
        return out


class AltUpLayer:
    """A mixer, a feed-forward network and the input of the layer. They compute the active stream."""

    def __init__(
        self,
        group: TensorParallelGroup,
        streams: AltUp,
        mixer: Mixer,
        ffn: FeedForward,
        norms: tuple[Norm, Norm, Norm, Norm],
        own_input: LayerInput,
        ends: StreamEnds,
    ) -> None:
        """`norms` are the input and output norm of the mixer, then of the network."""
        self._group = group
        self._streams = streams
        self.mixer = mixer
        self._ffn = ffn
        self._norms = norms
        self._own_input = own_input
        self._ends = ends

    def forward(
        self,
        x: SublayerOutput,
        residual: Tensor | None,  # noqa: ARG002 - the others need it
        state: InferState,
        kept: Tensor | None = None,
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`."""
        streams = self._ends.entered(x, state)
        active, carried = self._streams.read(streams, state)
        read = self._norms[0].read(active, active.new_empty(active.shape), self.mixer.wants)
        heads = self.mixer.forward(read, state)
        if kept is not None:
            heads, read, active = heads.index_select(0, kept), read.select(kept), active.index_select(0, kept)
            carried = of_tokens(carried, kept)
        streams = self._streams.write(carried, self._computed(heads, read, active, state), state)
        added = self._own_input.of(self._streams.scaled(streams), state, kept)
        streams[:, 1:] += added[:, None]
        return self._ends.left(streams, state)

    def _computed(self, heads: Tensor, read: Activations, active: Tensor, state: InferState) -> Tensor:
        """Returns what the sublayers make of the active stream, [T, hidden], from what the heads read."""
        _, mixed, before_ffn, after_ffn = self._norms
        y = self._summed(self.mixer.project(heads, state), mixed)
        y.add_(active).add_(self._streams.beside(read, state)).mul_(math.sqrt(0.5))
        normalised = before_ffn.read(y, torch.empty_like(y), self._ffn.wants)
        # The norm of one token is left to whoever reads it first, so `y` may not change before.
        out = self._summed(self._ffn.forward(normalised, state), after_ffn)
        return out.add_(y)

    def _summed(self, x: Tensor, norm: Norm) -> Tensor:
        """All-reduces partial sums, and normalises them in place."""
        self._group.all_reduce(x)
        norm.apply(x, x)
        return x

    def adapted(self, adapting: Adapting) -> "AltUpLayer":
        """See `TransformerLayer.adapted`."""
        parts = self._streams, self.mixer.adapted(adapting), self._ffn.adapted(adapting)
        first, second, third, fourth = (norm.adapted(adapting) for norm in self._norms)
        norms = first, second, third, fourth
        return AltUpLayer(self._group, *parts, norms, self._own_input, self._ends)

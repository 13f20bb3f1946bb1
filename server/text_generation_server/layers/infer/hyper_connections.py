"""Layers with hyper-connections between several residual streams (manifold-constrained hyper-connections, mHC, Xie et
al., 2026), around each sublayer:

    m = W rms_norm(all streams s),  (pre, post, comb) = coefficients of m     `stream_coefs` of the kernels
    x = sum over i of pre_i s_i
    s_i = post_i sublayer(norm(x)) + sum over j of comb_ji s_j

Behind the streams of a token is room for the output of a sublayer, `[T, streams + 1, hidden]`, so that one operator
reads both.
"""

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from ...config.streams import HyperConnectionsSpec
from ...distributed import TensorParallelGroup
from ..weights import Adapting, HyperConnectionWeights, HyperEndWeights, each_alone, in_blocks
from .feed_forward import FeedForward
from .fusion import SublayerOutput
from .mixer import Mixer
from .norm import Norm
from .state import InferState
from .streams import Carried, Connection, StreamEnds, of_tokens
from .token_ids import keep_tokens


class HyperConnection:
    """A `Connection` around one sublayer."""

    def __init__(self, spec: HyperConnectionsSpec, weights: HyperConnectionWeights) -> None:
        self._spec = spec
        self._weights = weights

    def read(self, streams: Tensor, state: InferState) -> tuple[Tensor, Carried]:
        """See `Connection`."""
        count, block = self._spec.count, state.linear_block
        own = streams[:, :count]
        mixes = in_blocks((own.flatten(1),), block, lambda x: _mixes(x, self._weights.matrix, self._spec.norm_eps))
        into, back = mixes.new_empty(len(own), 1, count), mixes.new_empty(len(own), count, count + 1)
        of_layer = (self._weights.base, self._weights.scale, self._spec.eps, self._spec.iterations)
        for part, its_into, its_back in each_alone(block, mixes, into, back):
            kernels.stream_coefs(part, *of_layer, its_into, its_back)
        x = own.new_empty(len(own), 1, own.shape[2])
        kernels.mix_streams(_zeros(x), into, own, x)
        return x[:, 0], (streams, back)

    def write(self, carried: Carried, y: Tensor, state: InferState) -> Tensor:  # noqa: ARG002 - others need it
        """See `Connection`."""
        streams, back = carried
        streams[:, -1] = y
        out = torch.empty_like(streams)
        own = out[:, : self._spec.count]
        kernels.mix_streams(_zeros(own), back, streams, own)
        return out


def _mixes(x: Tensor, matrix: Tensor, eps: float) -> Tensor:
    """Turns all streams of a token, [T, streams * hidden], into what coefficients are made of, float32."""
    wide = x.float()
    length = torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + eps)
    return functional.linear(wide.mul_(length) if wide is not x else wide * length, matrix)


def _zeros(like: Tensor) -> Tensor:
    """Zeros in the shape of `like` [T, streams, hidden], one row in memory."""
    return like.new_zeros(1, 1, like.shape[2]).expand(like.shape)


class HyperEnd:
    """A `StreamEnd`: copies of the embedding, and the mean of the streams."""

    def __init__(self, spec: HyperConnectionsSpec) -> None:
        self._count = spec.count

    def made(self, embedded: Tensor, state: InferState) -> Tensor:  # noqa: ARG002 - others need it
        """See `StreamEnd`."""
        streams = embedded.new_empty(len(embedded), self._count + 1, embedded.shape[1])
        streams[:, : self._count] = embedded[:, None]
        return streams

    def joined(self, streams: Tensor, state: InferState) -> Tensor:  # noqa: ARG002 - others need it
        """See `StreamEnd`."""
        return streams[:, : self._count].mean(dim=1)


class WeightedHyperEnd(HyperEnd):
    """A `StreamEnd`: copies of the embedding, and a sum of the streams s:

    m = W rms_norm(all streams s),  x = sum over i of (sigmoid(scale m_i + base_i) + eps) s_i
    """

    def __init__(self, spec: HyperConnectionsSpec, weights: HyperEndWeights) -> None:
        super().__init__(spec)
        self._spec = spec
        self._weights = weights

    def joined(self, streams: Tensor, state: InferState) -> Tensor:
        """See `StreamEnd`."""
        own, weights = streams[:, : self._count], self._weights
        mixes = in_blocks(
            (own.flatten(1),), state.linear_block, lambda x: _mixes(x, weights.matrix, self._spec.norm_eps)
        )
        into = kernels.sigmoid(mixes * weights.scale + weights.base).add_(self._spec.eps)
        x = own.new_empty(len(own), 1, own.shape[2])
        kernels.mix_streams(_zeros(x), into[:, None], own, x)
        return x[:, 0]


class HyperConnectedLayer:
    """A mixer, then a feed-forward network, each with a connection around it."""

    def __init__(
        self,
        group: TensorParallelGroup,
        connections: tuple[Connection, Connection],
        norms: tuple[Norm, Norm],
        mixer: Mixer,
        ffn: FeedForward,
        ends: StreamEnds,
    ) -> None:
        """`connections` and `norms` are those of the mixer, then of the network."""
        self._group = group
        self._connections = connections
        self._norms = norms
        self.mixer = mixer
        self._ffn = ffn
        self._ends = ends

    def forward(
        self,
        x: SublayerOutput,
        residual: Tensor | None,  # noqa: ARG002 - the others need it
        state: InferState,
        kept: Tensor | None = None,
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`."""
        around_mixer, around_ffn = self._connections
        streams = self._ends.entered(x, state)
        x, carried = around_mixer.read(streams, state)
        read = self._norms[0].read(x, torch.empty_like(x), self.mixer.wants)
        heads = self.mixer.forward(read, state)
        if kept is not None:
            heads, carried = heads.index_select(0, kept), of_tokens(carried, kept)
            keep_tokens(kept, state)
        streams = around_mixer.write(carried, self._summed(self.mixer.project(heads, state)), state)
        x, carried = around_ffn.read(streams, state)
        read = self._norms[1].read(x, torch.empty_like(x), self._ffn.wants)
        streams = around_ffn.write(carried, self._summed(self._ffn.forward(read, state)), state)
        return self._ends.left(streams, state)

    def _summed(self, x: Tensor) -> Tensor:
        """All-reduces partial sums in place."""
        self._group.all_reduce(x)
        return x

    def adapted(self, adapting: Adapting) -> "HyperConnectedLayer":
        """See `TransformerLayer.adapted`."""
        before_mixer, before_ffn = (norm.adapted(adapting) for norm in self._norms)
        parts = self.mixer.adapted(adapting), self._ffn.adapted(adapting)
        return HyperConnectedLayer(self._group, self._connections, (before_mixer, before_ffn), *parts, self._ends)

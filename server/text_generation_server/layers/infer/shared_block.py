"""Layers of Zamba 2 that call a transformer block which they share (Glorioso et al., 2024).

    y = P ffn(norm(attention(norm([x, e]))))            x: the residual stream, e: the embedding, side by side
    x += mixer(norm(x + y))

P is the layer's own, as are keys and values. Nothing of the block is added to the residual stream.
"""

from typing import cast

import torch
from torch import Tensor

from ...distributed import TensorParallelGroup
from ..weights import Activations, Adapting, Linear
from .embedding import KEPT
from .feed_forward import FeedForward
from .fusion import SublayerOutput
from .mixer import Mixer
from .norm import AddNorm, Norm
from .state import InferState


class BlockCall:
    """One layer's call of a block."""

    def __init__(
        self,
        group: TensorParallelGroup,
        norms: tuple[Norm, Norm],
        attention: Mixer,
        ffn: FeedForward,
        out: Linear,
    ) -> None:
        """`norms` are those before attention and before the network."""
        self._group = group
        self._norms = norms
        self.attention = attention
        self._ffn = ffn
        self._out = out

    def forward(self, stream: Tensor, state: InferState) -> Tensor:
        """Turns the residual stream [T, hidden] into what the mixer of the layer reads beside it, of the same shape."""
        wide = torch.cat((stream, cast("Tensor", state.made[KEPT])), dim=1)
        read = self._norms[0].read(wide, torch.empty_like(wide), self.attention.wants)
        x = self.attention.project(self.attention.forward(read, state), state)
        self._group.all_reduce(x)
        x = self._ffn.forward(self._norms[1].read(x, torch.empty_like(x), self._ffn.wants), state)
        self._group.all_reduce(x)
        return self._out.apply(Activations(x), state.linear_block)

    def adapted(self, adapting: Adapting) -> "BlockCall":
        """See `TransformerLayer.adapted`."""
        before, between = (norm.adapted(adapting) for norm in self._norms)
        parts = self.attention.adapted(adapting), self._ffn.adapted(adapting), adapting.linear(self._out)
        return BlockCall(self._group, (before, between), *parts)


class CallingLayer:
    """A call of a block, then a mixer."""

    def __init__(self, join: AddNorm, call: BlockCall, norm: Norm, mixer: Mixer) -> None:
        """`join` adds the output of the previous layer to the residual stream, and normalises nothing after it; `norm`
        is that of the mixer.
        """
        self._join = join
        self._call = call
        self._norm = norm
        self.mixer = mixer

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`."""
        _, stream = self._join.read(x, residual)
        inner = self._call.forward(stream, state).add_(stream)
        heads = self.mixer.forward(self._norm.read(inner, torch.empty_like(inner), self.mixer.wants), state)
        if kept is not None:
            heads, stream = heads.index_select(0, kept), stream.index_select(0, kept)
        return self.mixer.project(heads, state), stream

    def adapted(self, adapting: Adapting) -> "CallingLayer":
        """See `TransformerLayer.adapted`."""
        call, norm = self._call.adapted(adapting), self._norm.adapted(adapting)
        return CallingLayer(self._join.adapted(adapting), call, norm, self.mixer.adapted(adapting))

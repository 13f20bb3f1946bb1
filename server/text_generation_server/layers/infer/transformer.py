"""One transformer layer: attention and a feed-forward network, which read and add to a running sum.

The sum of everything before (`residual`) and the last addend (`x`) travel apart, so that addition and normalisation
are one operator. The ranks hold parts of an addend; they are summed where it is added (`Junction`).
"""

from torch import Tensor

from .attention import Attention
from .feed_forward import FeedForward
from .latent_attention import LatentAttention
from .norm import Junction, Norm
from .state import InferState

Mixer = Attention | LatentAttention
"""In which tokens of one request read each other."""


class TransformerLayer:
    """One part after the other."""

    def __init__(self, before_attention: Junction, attention: Mixer, before_ffn: Junction, ffn: FeedForward) -> None:
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffn = before_ffn
        self.ffn = ffn

    def forward(
        self, x: Tensor, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """[T, hidden] each, before and after; the layer reuses the memory of both. `residual` is None in layer 0. `x`
        may come and go in parts: see `Junction.read`.

        `kept`, [N] int64: of the new tokens only these are needed after this layer, so what follows attention is
        computed for them alone, and the results are [N, hidden].
        """
        read, residual = self.before_attention.read(x, residual)
        return self.after_attention(self.attention.forward(read, state), residual, state, kept)

    def after_attention(
        self, heads: Tensor, residual: Tensor, state: InferState, kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The rest of `forward`, from what the heads read, [T, heads * head_dim]."""
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        if not self.before_ffn.takes_parts:
            read, residual = self.before_ffn.read(self.attention.project(heads, state), residual)
            return self.ffn.forward(read, state), residual
        # The junction of the next layer is of the same kind.
        read, residual = self.before_ffn.read(self.attention.project_in_parts(heads, state), residual)
        return self.ffn.in_parts(read, state), residual


class ParallelLayer:
    """Both parts read the same sum: through one normalisation, or through one each."""

    def __init__(self, before: Junction, attention: Mixer, ffn_norm: Norm | None, ffn: FeedForward) -> None:
        self._before = before
        self.attention = attention
        self._ffn_norm = ffn_norm
        self._ffn = ffn

    def forward(
        self, x: Tensor, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `TransformerLayer.forward`."""
        read, residual = self._before.read(x, residual)
        heads = self.attention.forward(read, state)
        if kept is not None:
            read = read.select(kept)
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        if self._ffn_norm is not None:
            read = self._ffn_norm.read(residual, read.x, self._ffn.wants)
        total = self.attention.project(heads, state)
        return total.add_(self._ffn.forward(read, state)), residual

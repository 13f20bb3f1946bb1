"""One transformer layer: attention and a feed-forward network, which read and add to a running sum.

The sum of everything before (`residual`) and the last addend (`x`) travel apart, so that addition and normalisation
are one operator. The ranks hold parts of an addend; they are summed where it is added (`Junction`).
"""

from torch import Tensor

from ...distributed import TensorParallelGroup
from .addend import Addend, Destination
from .attention import Attention
from .feed_forward import FeedForward
from .latent_attention import LatentAttention
from .norm import Junction, Norm
from .state import InferState

Mixer = Attention | LatentAttention
"""In which tokens of one request read each other."""


class TransformerLayer:
    """One part after the other."""

    def __init__(
        self,
        group: TensorParallelGroup,
        before_attention: Junction,
        attention: Mixer,
        before_ffn: Junction,
        ffn: FeedForward,
        sums_are_plain: bool = False,
    ) -> None:
        """`sums_are_plain`: what both parts give is added to the sum as it is, and no other rank has a part of it."""
        self._group = group
        self._sums_are_plain = sums_are_plain
        self.before_attention = before_attention
        self.attention = attention
        self.before_ffn = before_ffn
        self.ffn = ffn

    def forward(
        self, x: Addend, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Addend, Tensor]:
        """[T, hidden] each, before and after; the layer reuses the memory of both. `residual` is None in layer 0. Both
        are one tensor where the last addend is in the sum already.

        `kept`, [N] int64: of the new tokens only these are needed after this layer, so what follows attention is
        computed for them alone, and the results are [N, hidden].
        """
        read, residual = self.before_attention.read(x, residual)
        return self.after_attention(self.attention.forward(read, state), residual, state, kept)

    def after_attention(
        self, heads: Tensor, residual: Tensor, state: InferState, kept: Tensor | None
    ) -> tuple[Addend, Tensor]:
        """The rest of `forward`, from what the heads read, [T, heads * head_dim]."""
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        x = self.attention.addend(heads, state, self._destination(residual, state))
        read, residual = self.before_ffn.read(x, residual)
        return self.ffn.addend(read, state, self._destination(residual, state)), residual

    def _destination(self, residual: Tensor, state: InferState) -> Destination:
        """Of both parts: the junction of the next layer is of the same kind. A product adds to the sum where there is
        one token, for which an operator between two products takes longer than its bytes.
        """
        is_open = self._sums_are_plain and residual.shape[0] == 1 and not state.deterministic
        return Destination(self._group, residual if is_open else None, self.before_ffn.takes_parts)


class ParallelLayer:
    """Both parts read the same sum: through one normalisation, or through one each."""

    def __init__(self, before: Junction, attention: Mixer, ffn_norm: Norm | None, ffn: FeedForward) -> None:
        self._before = before
        self.attention = attention
        self._ffn_norm = ffn_norm
        self._ffn = ffn

    def forward(
        self, x: Addend, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Addend, Tensor]:
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

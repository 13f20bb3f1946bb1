"""One layer: a mixer, a feed-forward network, or both, which read the residual stream and add to it.

The sum of everything before (`residual`) and the last addend (`x`) travel apart, so that addition and normalisation
are one operator. The ranks hold parts of an addend; they are summed where it is added (`Junction`).
"""

from dataclasses import dataclass

from torch import Tensor

from ...distributed import TensorParallelGroup
from .addend import Addend, Destination
from .feed_forward import FeedForward
from .mixer import Mixer
from .norm import Junction, Norm
from .state import InferState


@dataclass(frozen=True)
class Sums:
    """How what parts of layers give is added to the running sum."""

    group: TensorParallelGroup
    are_plain: bool = False
    """It is added as it is, and no other rank has a part of it."""

    def of(self, residual: Tensor, state: InferState, next_junction: Junction) -> Destination:
        """Where the last product of a part may leave its results, which `next_junction`, or one like it, reads.

        A product adds to the sum where there is one token, for which an operator between two products takes longer
        than its bytes.
        """
        is_open = self.are_plain and residual.shape[0] == 1 and not state.deterministic
        return Destination(self.group, residual if is_open else None, next_junction.takes_parts)


class TransformerLayer:
    """One part after the other."""

    def __init__(
        self,
        before_mixer: Junction,
        mixer: Mixer,
        before_ffn: Junction,
        ffn: FeedForward,
        sums: Sums,
    ) -> None:
        self._sums = sums
        self.before_mixer = before_mixer
        self.mixer = mixer
        self.before_ffn = before_ffn
        self.ffn = ffn

    def forward(
        self, x: Addend, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Addend, Tensor]:
        """[T, hidden] each, before and after; the layer reuses the memory of both. `residual` is None in layer 0. Both
        are one tensor where the last addend is in the sum already.

        `kept`, [N] int64: of the new tokens only these are needed after this layer, so what follows the mixer is
        computed for them alone, and the results are [N, hidden].
        """
        read, residual = self.before_mixer.read(x, residual)
        return self.after_mixer(self.mixer.forward(read, state), residual, state, kept)

    def after_mixer(
        self, heads: Tensor, residual: Tensor, state: InferState, kept: Tensor | None
    ) -> tuple[Addend, Tensor]:
        """The rest of `forward`, from what the heads read, [T, heads * head_dim]."""
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        x = self.mixer.addend(heads, state, self._sums.of(residual, state, self.before_ffn))
        read, residual = self.before_ffn.read(x, residual)
        # The junction of the next layer is of the same kind.
        return self.ffn.addend(read, state, self._sums.of(residual, state, self.before_ffn)), residual


class MixerLayer:
    """A mixer alone."""

    def __init__(self, before: Junction, mixer: Mixer, sums: Sums) -> None:
        self._before = before
        self._mixer = mixer
        self._sums = sums

    def forward(
        self, x: Addend, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Addend, Tensor]:
        """See `TransformerLayer.forward`."""
        read, residual = self._before.read(x, residual)
        heads = self._mixer.forward(read, state)
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        return self._mixer.addend(heads, state, self._sums.of(residual, state, self._before)), residual


class FeedForwardLayer:
    """A feed-forward network alone."""

    def __init__(self, before: Junction, ffn: FeedForward, sums: Sums) -> None:
        self._before = before
        self._ffn = ffn
        self._sums = sums

    def forward(
        self, x: Addend, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Addend, Tensor]:
        """See `TransformerLayer.forward`."""
        read, residual = self._before.read(x, residual)
        if kept is not None:
            read, residual = read.select(kept), residual.index_select(0, kept)
        return self._ffn.addend(read, state, self._sums.of(residual, state, self._before)), residual


class ParallelLayer:
    """Both parts read the same sum: through one normalisation, or through one each."""

    def __init__(self, before: Junction, mixer: Mixer, ffn_norm: Norm | None, ffn: FeedForward) -> None:
        self._before = before
        self.mixer = mixer
        self._ffn_norm = ffn_norm
        self._ffn = ffn

    def forward(
        self, x: Addend, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Addend, Tensor]:
        """See `TransformerLayer.forward`."""
        read, residual = self._before.read(x, residual)
        heads = self.mixer.forward(read, state)
        if kept is not None:
            read = read.select(kept)
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        if self._ffn_norm is not None:
            read = self._ffn_norm.read(residual, read.x, self._ffn.wants)
        total = self.mixer.project(heads, state)
        return total.add_(self._ffn.forward(read, state)), residual


Layer = TransformerLayer | MixerLayer | FeedForwardLayer | ParallelLayer

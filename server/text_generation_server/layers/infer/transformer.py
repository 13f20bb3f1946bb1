"""One layer: a mixer, a feed-forward network, or both, which read the residual stream and add to it.

The residual stream (`residual`) and the output of the last sublayer (`x`) travel separately, so that one operator does
residual add and norm. The ranks hold partial sums of a sublayer's output, which `AddNorm` all-reduces.
"""

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ...config.spec import SkipSpec
from ...distributed import TensorParallelGroup
from ..weights import Activations, Adapting
from .altup import AltUpLayer
from .feed_forward import FeedForward
from .fusion import OutputFusion, SublayerOutput
from .hyper_connections import HyperConnectedLayer
from .mixer import Mixer
from .norm import AddNorm, Norm
from .scaled_layer import ScaledLayer
from .shared_block import CallingLayer
from .state import InferState


@dataclass(frozen=True)
class OutputFusions:
    """How the last GEMMs of a layer's sublayers may be fused."""

    group: TensorParallelGroup
    adds_are_plain: bool = False
    """Whether outputs are added to the residual stream as they are: no scale, no output norm, no other rank."""

    def of(self, residual: Tensor, state: InferState, next_add_norm: AddNorm) -> OutputFusion:
        """Returns the fusion of a sublayer whose output `next_add_norm`, or one like it, reads.

        The GEMV of a single token adds to the residual stream itself: there, an operator between two GEMVs takes longer
        than its bytes.
        """
        is_open = self.adds_are_plain and residual.shape[0] == 1 and not state.deterministic
        return OutputFusion(self.group, residual if is_open else None, next_add_norm.takes_partials)


class TransformerLayer:
    """A mixer, then a feed-forward network."""

    def __init__(
        self,
        before_mixer: AddNorm,
        mixer: Mixer,
        before_ffn: AddNorm,
        ffn: FeedForward,
        fusions: OutputFusions,
    ) -> None:
        self._fusions = fusions
        self.before_mixer = before_mixer
        self.mixer = mixer
        self.before_ffn = before_ffn
        self.ffn = ffn

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
        """Takes and returns the output of the last sublayer and the residual stream, [T, hidden] each, and reuses the
        memory of both. `residual` is None in layer 0. Both are one tensor where a GEMV has added its output already.

        `kept`, [N] int64, names the new tokens that are needed after this layer: what follows the mixer is computed for
        these alone, and the results are [N, hidden].
        """
        read, residual = self.before_mixer.read(x, residual)
        return self.after_mixer(self.mixer.forward(read, state), residual, state, kept)

    def after_mixer(
        self, heads: Tensor, residual: Tensor, state: InferState, kept: Tensor | None
    ) -> tuple[SublayerOutput, Tensor]:
        """Does the rest of `forward`, from what the heads read, [T, heads * head_dim]."""
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        x = self.mixer.project_fused(heads, state, self._fusions.of(residual, state, self.before_ffn))
        read, residual = self.before_ffn.read(x, residual)
        return self._network(read, residual, state, kept), residual

    def _network(
        self,
        read: Activations,
        residual: Tensor,
        state: InferState,
        kept: Tensor | None,  # noqa: ARG002 - for other layers
    ) -> SublayerOutput:
        # The `AddNorm` of the next layer takes the same outputs as this one.
        return self.ffn.forward_fused(read, state, self._fusions.of(residual, state, self.before_ffn))

    def adapted(self, adapting: Adapting) -> "TransformerLayer":
        """Returns a layer for tokens with adapters, which shares everything else with this one."""
        return TransformerLayer(*self._adapted_parts(adapting), self._fusions)

    def _adapted_parts(self, adapting: Adapting) -> tuple[AddNorm, Mixer, AddNorm, FeedForward]:
        before = self.before_mixer.adapted(adapting), self.before_ffn.adapted(adapting)
        mixer, ffn = self.mixer.adapted(adapting), self.ffn.adapted(adapting)
        return before[0], mixer, before[1], ffn


class SkipLayer:
    """A layer that reads a mix of the residual stream with what earlier layers read (Solar Pro)."""

    def __init__(self, spec: SkipSpec, join: AddNorm, layer: TransformerLayer) -> None:
        """`join` adds the output of the previous layer to the residual stream, and normalises nothing after it."""
        self._spec = spec
        self._join = join
        self._layer = layer
        self.mixer = layer.mixer

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`."""
        _, stream = self._join.read(x, residual)
        for place in self._spec.kept:
            # Layers reuse the memory of the stream.
            state.made["skip", place] = stream.clone()
        for place in self._spec.mixed:
            held = cast("Tensor", state.made["skip", place])
            stream.mul_(1.0 - self._spec.share).add_(held, alpha=self._spec.share)
        return self._layer.forward(stream, None, state, kept)

    def adapted(self, adapting: Adapting) -> "SkipLayer":
        """See `TransformerLayer.adapted`."""
        return SkipLayer(self._spec, self._join.adapted(adapting), self._layer.adapted(adapting))


class MixerLayer:
    """A mixer alone."""

    def __init__(self, before: AddNorm, mixer: Mixer, fusions: OutputFusions) -> None:
        self._before = before
        self._mixer = mixer
        self._fusions = fusions

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`."""
        read, residual = self._before.read(x, residual)
        heads = self._mixer.forward(read, state)
        if kept is not None:
            heads, residual = heads.index_select(0, kept), residual.index_select(0, kept)
        return self._mixer.project_fused(heads, state, self._fusions.of(residual, state, self._before)), residual

    def adapted(self, adapting: Adapting) -> "MixerLayer":
        """See `TransformerLayer.adapted`."""
        return MixerLayer(self._before.adapted(adapting), self._mixer.adapted(adapting), self._fusions)


class FeedForwardLayer:
    """A feed-forward network alone."""

    def __init__(self, before: AddNorm, ffn: FeedForward, fusions: OutputFusions) -> None:
        self._before = before
        self._ffn = ffn
        self._fusions = fusions

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
        """See `TransformerLayer.forward`."""
        read, residual = self._before.read(x, residual)
        if kept is not None:
            read, residual = read.select(kept), residual.index_select(0, kept)
        return self._ffn.forward_fused(read, state, self._fusions.of(residual, state, self._before)), residual

    def adapted(self, adapting: Adapting) -> "FeedForwardLayer":
        """See `TransformerLayer.adapted`."""
        return FeedForwardLayer(self._before.adapted(adapting), self._ffn.adapted(adapting), self._fusions)


class ParallelLayer:
    """Mixer and feed-forward network read the same residual stream, through one norm or through one norm each."""

    def __init__(self, before: AddNorm, mixer: Mixer, ffn_norm: Norm | None, ffn: FeedForward) -> None:
        self._before = before
        self.mixer = mixer
        self._ffn_norm = ffn_norm
        self._ffn = ffn

    def forward(
        self, x: SublayerOutput, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[SublayerOutput, Tensor]:
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

    def adapted(self, adapting: Adapting) -> "ParallelLayer":
        """See `TransformerLayer.adapted`."""
        before, ffn_norm = self._before.adapted(adapting), self._ffn_norm
        ffn_norm = None if ffn_norm is None else ffn_norm.adapted(adapting)
        return ParallelLayer(before, self.mixer.adapted(adapting), ffn_norm, self._ffn.adapted(adapting))


Layer = (
    TransformerLayer
    | SkipLayer
    | ScaledLayer
    | AltUpLayer
    | HyperConnectedLayer
    | CallingLayer
    | MixerLayer
    | FeedForwardLayer
    | ParallelLayer
)

"""Two layers with a shortcut-connected mixture (Cai et al., 2024; LongCat Flash): its experts read what the dense
network of the first one reads, and their output is added behind the network of the second one.
"""

from typing import cast

from torch import Tensor

from ..weights import Activations, Adapting
from .feed_forward import FeedForward
from .fusion import SublayerOutput
from .mixer import Mixer
from .norm import AddNorm
from .state import InferState
from .transformer import OutputFusions, TransformerLayer

_MADE = "output of the experts ahead"


class ShortcutStart(TransformerLayer):
    """The first one."""

    def __init__(
        self,
        before_mixer: AddNorm,
        mixer: Mixer,
        before_ffn: AddNorm,
        ffn: FeedForward,
        fusions: OutputFusions,
        experts: FeedForward,
    ) -> None:
        super().__init__(before_mixer, mixer, before_ffn, ffn, fusions)
        self._experts = experts

    def _network(self, read: Activations, residual: Tensor, state: InferState, kept: Tensor | None) -> SublayerOutput:
        # The network may add its output to the residual stream, of which `read` may be a norm yet to be computed.
        state.made[_MADE] = self._experts.forward(read, state)
        return super()._network(read, residual, state, kept)

    def adapted(self, adapting: Adapting) -> "ShortcutStart":
        """See `TransformerLayer.adapted`."""
        return ShortcutStart(*self._adapted_parts(adapting), self._fusions, self._experts.adapted(adapting))


class ShortcutEnd(TransformerLayer):
    """The second one."""

    def _network(
        self,
        read: Activations,
        residual: Tensor,  # noqa: ARG002 - the others need it
        state: InferState,
        kept: Tensor | None,
    ) -> SublayerOutput:
        made = cast("Tensor", state.made.pop(_MADE))
        if kept is not None:
            made = made.index_select(0, kept)
        return self.ffn.forward(read, state).add_(made)

    def adapted(self, adapting: Adapting) -> "ShortcutEnd":
        """See `TransformerLayer.adapted`."""
        return ShortcutEnd(*self._adapted_parts(adapting), self._fusions)

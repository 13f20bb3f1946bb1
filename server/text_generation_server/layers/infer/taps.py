"""Hidden states that a forward pass hands to a drafter: the residual stream as it enters some of the layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...distributed import PendingAllReduce
from ..weights import Activations
from .fusion import SublayerOutput
from .norm import AddNorm


class Taps:
    """What a forward pass leaves for the drafter. The engine thread owns it; the next pass replaces it."""

    def __init__(self, layers: Sequence[int]) -> None:
        """Each of `layers` is a layer that the stream enters; the number of layers stands for its end."""
        self.layers = tuple(layers)
        self._hidden = torch.empty(0)
        self._kept: list[int] = []

    def begin(self, embedded: Tensor) -> None:
        """Begins a pass over tokens with these embeddings [T, hidden]."""
        tokens, hidden = embedded.shape
        self._hidden = embedded.new_empty(tokens, len(self.layers), hidden)
        self._kept = [0] * len(self.layers)

    def keep(self, place: int, stream: Tensor) -> None:
        """Copies what enters layer number `place` of `layers`, for the next tokens."""
        first = self._kept[place]
        self._kept[place] = end = first + len(stream)
        self._hidden[first:end, place].copy_(stream)

    def kept(self, place: int) -> int:
        """Returns the tokens of the pass whose stream was kept there."""
        return self._kept[place]

    def take(self) -> Tensor:
        """Returns what the last pass has left, [T, layers * hidden]. It is no more here then: its memory is that of a
        step.
        """
        hidden, self._hidden = self._hidden.flatten(1), torch.empty(0)
        return hidden


class TappedAddNorm(AddNorm):
    """An `AddNorm` that keeps the residual stream which it has read."""

    def tap(self, taps: Taps, place: int) -> "TappedAddNorm":
        """Sets where the stream is kept: as number `place` of the layers of `taps`."""
        self._taps, self._place = taps, place
        return self

    def read(self, x: SublayerOutput, residual: Tensor | None) -> tuple[Activations, Tensor]:
        """See `AddNorm`."""
        kept = self._taps.kept(self._place)
        made, stream = super().read(x, residual)
        # It may have called `read_sum`.
        if self._taps.kept(self._place) == kept:
            self._taps.keep(self._place, stream)
        return made, stream

    def read_sum(self, x: PendingAllReduce, residual: Tensor) -> tuple[Activations, Tensor]:
        """See `AddNorm`."""
        made, stream = super().read_sum(x, residual)
        self._taps.keep(self._place, stream)
        return made, stream


def add_norm(taps: Taps | None, layer: int | None, *arguments: Any, **options: Any) -> AddNorm:
    """Makes the `AddNorm` before `layer`, or within one (None). It keeps what it reads where `taps` ask for that."""
    if taps is None or layer is None or layer not in taps.layers:
        return AddNorm(*arguments, **options)
    return TappedAddNorm(*arguments, **options).tap(taps, taps.layers.index(layer))

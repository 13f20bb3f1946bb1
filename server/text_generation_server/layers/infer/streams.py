"""Several residual streams: what computes with one hidden state reads it of the streams, and writes to them.

A model says how (`config/streams.py`): AltUp of Gemma 3n around each layer (`altup.py`), hyper-connections around each
sublayer (`hyper_connections.py`). Streams lie side by side, `[T, streams, hidden]`; connections may add rooms of their
own behind them.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .fusion import SublayerOutput
from .state import InferState

Carried = tuple[Tensor, ...]
"""What a connection carries past what it is around: tensors with a row for each token."""


class Connection(Protocol):
    """Stands between all streams and what computes with one hidden state: a sublayer, or a layer."""

    def read(self, streams: Tensor, state: InferState) -> tuple[Tensor, Carried]:
        """Returns the hidden state that is computed with, [T, hidden], and what `write` needs."""
        ...

    def write(self, carried: Carried, y: Tensor, state: InferState) -> Tensor:
        """Returns the streams, after the hidden state has become `y` [T, hidden]. It may change both in place."""
        ...


class StreamEnd(Protocol):
    """Stands before the first layer, or behind the last one."""

    def made(self, embedded: Tensor, state: InferState) -> Tensor:
        """Makes the streams of the embedding [T, hidden]."""
        ...

    def joined(self, streams: Tensor, state: InferState) -> Tensor:
        """Makes one hidden state [T, hidden] of the streams."""
        ...


@dataclass(frozen=True)
class StreamEnds:
    """What a layer has of the ends of the streams."""

    first: StreamEnd | None
    """In the first layer, which gets the embedding."""
    last: StreamEnd | None
    """In the last layer, which returns one hidden state."""

    def entered(self, x: SublayerOutput, state: InferState) -> Tensor:
        """Returns the streams of what the layer gets."""
        if not isinstance(x, Tensor):
            raise TypeError("a layer with several residual streams reads them whole")
        return x if self.first is None else self.first.made(x, state)

    def left(self, streams: Tensor, state: InferState) -> tuple[SublayerOutput, Tensor]:
        """Returns output and residual stream of the layer, which are one: the streams, or what is made of them."""
        out = streams if self.last is None else self.last.joined(streams, state)
        return out, out


def of_tokens(carried: Carried, kept: Tensor) -> Carried:
    """What is carried of the tokens that `kept` [N] int64 names."""
    return tuple(each.index_select(0, kept) for each in carried)

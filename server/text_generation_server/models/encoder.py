"""Interface between the engine and an encoder of images, which turns pixels into hidden states of the decoder."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

EncoderState = object
"""One item between `Encoder.begin` and `Encoder.finish`; the encoder alone looks inside."""


class Encoder(Protocol):
    """The encoder of a model, immutable once it is built. The engine thread owns it.

    Every rank has all of it and computes the same bits, so it needs no collective. An item's rows do not depend on when
    it is encoded, or in how many ranges of layers; with others in one GEMM, they may be rounded otherwise.
    """

    layers: int
    """How many layers `run` has."""
    levels: int
    """Hidden states that it makes of a position: the first takes the place of the token's embedding, the others are
    added to the residual stream after the first layers of the decoder, one each (DeepStack).
    """
    hidden: int
    """The width of the decoder's hidden states."""
    token_id: int
    """The placeholder that stands in `input_ids` at every position of a span."""
    whole_spans: bool
    """Whether tokens of a span attend to each other in both directions."""
    own_matrices: bool
    """Whether tokens of a span pass matrices of their own in the layers of the decoder."""
    axes: bool
    """Whether positions count along axes (M-RoPE)."""
    packs: bool
    """Whether views of several items may be begun together, as those of one: their rows follow each other."""

    def rows(self, views: Sequence[tuple[int, int]], grid: tuple[int, int] = (0, 0)) -> int:
        """Returns how many positions an item with views of these heights and widths takes. `grid` is its own, where
        positions count along axes, and that of its patches where the encoder leaves out those of a frame around it;
        without it there is no frame.

        Raises `InvalidRequest`, naming `views` or `grid`, for sizes that the encoder does not read. It looks at numbers
        alone.
        """
        ...

    def sample(self, pixels: int) -> Sequence[tuple[int, int]]:
        """Returns heights and widths of the views of a typical item of at most so many pixels; of the smallest item, if
        none has so few. Warm-up measures memory and time with it.
        """
        ...

    def begin(self, views: Sequence[Tensor], grid: tuple[int, int] = (0, 0)) -> EncoderState:
        """Begins an item whose views, uint8 [height, width, 3] on the device, have passed `rows` with this `grid`:
        normalised, in patches, with positions. It does not keep the pixels.
        """
        ...

    def run(self, state: EncoderState, first: int, count: int) -> None:
        """Computes layers `first` .. `first + count - 1`, which follow those that are computed."""
        ...

    def finish(self, state: EncoderState) -> Tensor:
        """Returns the item's rows, [rows, levels, hidden] of the decoder's type, in the order of its views. All layers
        are computed; the state is of no use afterwards.
        """
        ...


def keeps_bits(encoder: Encoder) -> bool:
    """Whether its images can be served in deterministic mode. There, attention treats each token as a decode, and
    tokens of a span that attend to later ones have no such form. Nor have matrices of their own one arithmetic with
    those of other steps.
    """
    return not (encoder.whole_spans or encoder.own_matrices)

"""Plain dataclasses of the shard contract about media (images), field for field those of `generate.proto`.

They import neither torch nor gRPC, like those in `requests.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Positions `first` .. `first + length - 1` of a request take rows `row` .. of the media pool in place of rows of
    the token embedding.
    """

    first: int
    length: int
    row: int
    grid_height: int = 0
    grid_width: int = 0

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self.first + self.length


@dataclass(frozen=True, slots=True)
class Encode:
    """Layers `first_layer` .. `first_layer + layers - 1` of the encoder for an item. The last range writes rows `row`
    .. `row + rows - 1` of the media pool.
    """

    item: int
    first_layer: int
    layers: int
    row: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class MediaPut:
    """One item, and the pixels of its views, [height, width, 3] each, one after the other."""

    item: int
    views: tuple[tuple[int, int], ...]
    """Height and width of each."""
    grid: tuple[int, int]
    rows: int
    pixels: Pixels

    @property
    def num_pixels(self) -> int:
        """The pixels of all views."""
        return pixels_of(self.views)


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """The encoder, as plans have to know it."""

    token_id: int
    layers: int
    whole_spans: bool = False
    axes: bool = False
    packs: bool = False
    own_matrices: bool = False


@dataclass(frozen=True, slots=True)
class MediaCost:
    """The time of encoding an item by its pixels, all layers together: straight lines between points."""

    pixels: Sequence[int] = ()
    times_ms: Sequence[float] = ()


def pixels_of(views: Sequence[tuple[int, int]]) -> int:
    """Returns the pixels of all views."""
    return sum(height * width for height, width in views)

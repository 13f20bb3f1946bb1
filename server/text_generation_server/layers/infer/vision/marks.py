"""Tiles of a large image with marks between them, which are positions of the prompt too."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from ....errors import InvalidRequest
from .tiles import Size, cut_tiles


@dataclass(frozen=True)
class MarkedTiles:
    """The tiles of a family: squares of `image` pixels and `side` x `side` positions."""

    image: int
    side: int
    marks: Tensor
    """[5, hidden]: `MarkSpec`."""

    def rows(self, views: Sequence[Size], _: Size) -> int:
        """Returns the positions of an item. Raises InvalidRequest."""
        image = self.image
        if not 1 <= len(views) <= 2:
            raise InvalidRequest(f"`views` has {len(views)} views: an item has one, or two where it is cut into tiles")
        if views[0] != (image, image):
            size = f"{views[0][0]} x {views[0][1]}"
            raise InvalidRequest(f"`views[0]` is {size}, but the encoder reads {image} x {image}")
        if len(views) == 1:
            return self.side**2 + 3
        if any(pixels < 1 or pixels % image for pixels in views[1]):
            size = f"{views[1][0]} x {views[1][1]}"
            raise InvalidRequest(f"`views[1]` is {size}: height and width must be multiples of {image}")
        tiles = views[1][0] // image * (views[1][1] // image)
        return (tiles + 1) * self.side**2 + 3 + tiles - 1

    def sample(self, pixels: int) -> list[Size]:
        """Returns the views of an item of at most so many pixels, or of the smallest one."""
        tiles, whole = pixels // self.image**2 - 1, (self.image, self.image)
        if tiles < 1:
            return [whole]
        down = isqrt(tiles)
        return [whole, (down * self.image, tiles // down * self.image)]

    def cut(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Returns the views that the tower reads: the whole image, then its tiles row by row."""
        return cut_tiles(views, self.image)

    def pack(self, rows: Tensor, view: Size | None, _: Size) -> Tensor:
        """Turns [views of the tower * side * side, hidden] into [rows, hidden]. `view` is the size of the view that was
        cut, where there was one.
        """
        base, *tiles = rows.split(self.side**2)
        start, behind, column, row, end = self.marks.split(1)
        parts = [start, base, behind]
        across = 1 if view is None else view[1] // self.image
        for index, tile in enumerate(tiles):
            if index:
                parts.append(column if index % across else row)
            parts.append(tile)
        return torch.cat([*parts, end])

"""Tiles of a large image, and their positions: row by row over the whole image, with a learned one behind each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from ....config.vision import TileSpec
from ....errors import InvalidRequest

Size = tuple[int, int]
"""Height and width."""
_SMALLEST_RATIO = 1.1


@dataclass(frozen=True)
class Tiles:
    """The tiles of a family: squares of `image` pixels and `side` x `side` patches, one position each."""

    spec: TileSpec
    image: int
    side: int
    newline: Tensor

    def rows(self, views: Sequence[Size], grid: Size) -> int:
        """Returns the positions of an item whose patches without frame are `grid`. Raises InvalidRequest."""
        if not 1 <= len(views) <= 2:
            raise InvalidRequest(f"`views` has {len(views)} views: an item has one, or two where it is cut into tiles")
        if views[0] != (self.image, self.image):
            raise InvalidRequest(f"`views[0]` is {_text(views[0])}, but the encoder reads {self.image} x {self.image}")
        if len(views) == 1:
            return self.side**2 + 1
        self._check(views[1], self._inner(views[1], grid))
        height, width = self._shrunk(self._inner(views[1], grid))
        return self.side**2 + height * (width + 1)

    def _check(self, view: Size, grid: Size) -> None:
        if any(pixels < 1 or pixels % self.image for pixels in view):
            raise InvalidRequest(f"`views[1]` is {_text(view)}: height and width must be multiples of {self.image}")
        most = [pixels // self.image * self.side for pixels in view]
        frames = [whole - inner for whole, inner in zip(most, grid, strict=True)]
        fits = min(grid) > 0 and min(frames) == 0 and not any(frame % 2 for frame in frames)
        if not fits or min(self._shrunk(grid)) < 1:
            raise InvalidRequest(
                f"`grid_height` x `grid_width` is {_text(grid)}: it must be the patches of `views[1]`, "
                f"{most[0]} x {most[1]}, without a frame of the same width on two opposite sides"
            )

    def _inner(self, view: Size, grid: Size) -> Size:
        """Returns the grid without the frame; there is none where nobody has said so."""
        height, width = (pixels // self.image * self.side for pixels in view)
        return (height, width) if grid == (0, 0) else grid

    def sample(self, pixels: int) -> list[Size]:
        """Returns the views of an item of at most so many pixels, or of the smallest one."""
        tiles = pixels // self.image**2 - 1
        whole = (self.image, self.image)
        if tiles < 1:
            return [whole]
        down = isqrt(tiles)
        return [whole, (down * self.image, tiles // down * self.image)]

    def _shrunk(self, grid: Size) -> Size:
        """Returns the size of the grid that the decoder reads."""
        if not self.spec.tiles:
            return grid
        ratio = (grid[0] * grid[1] / (self.spec.tiles * self.side**2)) ** 0.5
        return (int(grid[0] // ratio), int(grid[1] // ratio)) if ratio > _SMALLEST_RATIO else grid

    def cut(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Returns the views that the tower reads: the whole image, then its tiles row by row."""
        return cut_tiles(views, self.image)

    def pack(self, rows: Tensor, view: Size | None, grid: Size) -> Tensor:
        """Turns [views of the tower * side * side, hidden] into [rows, hidden]. `view` is the size of the view that was
        cut, where there was one.
        """
        base, tiles = rows[: self.side**2], rows[self.side**2 :]
        if view is None:
            return torch.cat([base, self.newline[None]])
        grid, hidden = self._inner(view, grid), rows.shape[1]
        across = view[1] // self.image
        whole = tiles.reshape(-1, across, self.side, self.side, hidden).transpose(1, 2)
        whole = whole.reshape(-1, across * self.side, hidden)
        top, left = ((size - inner) // 2 for size, inner in zip(whole.shape[:2], grid, strict=True))
        inner = whole[top : top + grid[0], left : left + grid[1]]
        size = self._shrunk(grid)
        if size != grid:
            inner = functional.interpolate(inner.permute(2, 0, 1)[None], size, mode="bilinear")[0].permute(1, 2, 0)
        ends = self.newline.expand(size[0], 1, hidden)
        return torch.cat([base, torch.cat([inner, ends], dim=1).flatten(0, 1)])


def cut_tiles(views: Sequence[Tensor], image: int) -> list[Tensor]:
    """Cuts the second view, where there is one, into squares of `image` pixels, row by row."""
    rows = views[1].split(image) if len(views) > 1 else ()
    return [views[0], *(tile for row in rows for tile in row.split(image, dim=1))]


def _text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"

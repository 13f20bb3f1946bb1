"""The order of patches in the hidden states of a vision tower.

Patches that become one position stand side by side, row by row within it. Positions go row by row over a view, or
window by window, so that a window is a range. Windows of one size follow each other: whole ones, and those at the right
and lower edges.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ViewOrder:
    """The patches of one view."""

    height: int
    """Patches along a side, as the next one."""
    width: int
    patches: Tensor
    """[P]: the patch, counted row by row over the view, that stands at each place."""
    positions: Tensor | None
    """[P / merge^2]: the position, counted row by row, that stands at each place. None: they are in this order."""
    windows: list[int]
    """Patches of each window."""

    @property
    def count(self) -> int:
        """The number of patches."""
        return self.height * self.width

    @property
    def rows(self) -> Tensor:
        """[P]: the row of each patch."""
        return self.patches // self.width

    @property
    def columns(self) -> Tensor:
        """[P]: the column of each patch."""
        return self.patches % self.width


def order_of(height: int, width: int, merge: int, window: int) -> ViewOrder:
    """Orders a view of so many patches, which `merge` divides. `window` is the side of a window in positions, or 0."""
    down, across = height // merge, width // merge
    raster = torch.arange(height * width).view(down, merge, across, merge)
    blocks = raster.transpose(1, 2).reshape(down * across, merge * merge)
    if not window:
        return ViewOrder(height, width, blocks.flatten(), None, [height * width])
    row, column = torch.arange(down)[:, None] // window, torch.arange(across)[None] // window
    number = (row * -(-across // window) + column).flatten()
    sizes, by_size = torch.bincount(number).sort(descending=True, stable=True)
    positions = torch.argsort(by_size.argsort()[number], stable=True)
    windows = (sizes * merge * merge).tolist()
    return ViewOrder(height, width, blocks[positions].flatten(), positions, windows)

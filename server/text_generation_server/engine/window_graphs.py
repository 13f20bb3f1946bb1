"""CUDA graphs of steps whose windows are wider than one token (`graphs.py`, `speculation.py`)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from text_generation_kernels import Windows

from .graphs import StepGraphs
from .running import CheckedPlan
from .speculation import Chosen
from .transfer import overwrite
from .widths import MAX_WINDOW_TOKENS

_WINDOWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of windows of steps that get a graph."""


def window_sizes(width: int, decodes: Sequence[int]) -> list[int]:
    """Returns the numbers of windows of this width that get a graph. `decodes` are the sizes of graphs of one token."""
    most = min(max(decodes, default=0), MAX_WINDOW_TOKENS // width)
    return sorted({size for size in _WINDOWS if size < most} | {most}) if most else []


class WindowGraphs:
    """Graphs of whole steps with windows of one width. Only the engine thread uses them."""

    def __init__(self, width: int, padding_row: int, device: torch.device) -> None:
        self._width = width
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs[Chosen](device)
        self._packed = torch.empty(0, dtype=torch.int64)

    def capture(self, step: Callable[[Windows], Chosen], sizes: Sequence[int], memory: Any) -> None:
        """Captures a graph for each number of windows."""
        self._packed = torch.full(
            (2 * max(sizes, default=0),), self._padding_row, dtype=torch.int64, device=self._device
        )
        self._graphs.capture(lambda size: step(self._windows(size)), sizes, memory)

    def prepare(self, plan: CheckedPlan) -> Callable[[], Chosen] | None:
        """Writes the windows of a plan to where the fitting graph reads them, and returns a function that replays it;
        None where no graph fits. The result begins with the plan's; the next replay overwrites it.
        """
        count = len(plan.decodes)
        size = self._graphs.fitting(count)
        if size is None or plan.widths is None:
            return None
        packed = np.full(2 * size, self._padding_row, dtype=np.int64)
        packed[:count], packed[size : size + count] = plan.decodes, plan.widths
        overwrite(self._packed[: 2 * size], packed)
        return partial(self._graphs.replay, size)

    def _windows(self, size: int) -> Windows:
        return Windows(self._packed[:size], self._packed[size : 2 * size], self._width)

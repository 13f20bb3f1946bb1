"""CUDA graphs of steps whose windows are wider than one token (`graphs.py`, `speculation.py`)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import WindowInputs, Windows

from ..layers.weights import StepAdapters
from .adapters import AdapterBuffer, AdapterTables
from .graphs import StepGraphs, adapter_buffer
from .running import CheckedPlan
from .transfer import overwrite
from .widths import MAX_WINDOW_TOKENS

Result = TypeVar("Result")

_WIDEST_BESIDE_CHUNKS = 4
"""Wider windows of steps with chunks get no graph: such steps are compute-bound, so few of these pay."""
_WINDOWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of windows of steps that get a graph."""
_FORWARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The same of steps whose sampling waits for masks; there are fewer, to keep a start short."""


def window_sizes(width: int, decodes: Sequence[int]) -> list[int]:
    """Returns the numbers of windows of this width that get a graph. `decodes` are the sizes of graphs of one token."""
    return _up_to_most(_WINDOWS, width, decodes)


def forward_window_sizes(width: int, decodes: Sequence[int]) -> list[int]:
    """Returns the same of steps whose forward pass gets a graph of its own."""
    return _up_to_most(_FORWARDS, width, decodes)


def window_token_sizes(width: int, tokens: Sequence[int]) -> list[int]:
    """Returns the numbers of tokens of steps with chunks and windows of this width that get a graph. `tokens` are the
    sizes of graphs of steps with chunks; there are fewer, to keep a start short.
    """
    return sorted(size for size in tokens[::-1][::2] if size >= width) if width <= _WIDEST_BESIDE_CHUNKS else []


def _up_to_most(sizes: Sequence[int], width: int, decodes: Sequence[int]) -> list[int]:
    most = min(max(decodes, default=0), MAX_WINDOW_TOKENS // width)
    return sorted({size for size in sizes if size < most} | {most}) if most else []


class ForwardedWindows(NamedTuple):
    """Windows that a forward pass has computed, and that have no tokens yet."""

    hidden: Tensor
    """[entries, hidden]"""
    inputs: WindowInputs

    def first(self, entries: int) -> "ForwardedWindows":
        """Returns the same without what pads it."""
        inputs = WindowInputs(*(each[:entries] for each in self.inputs))
        return ForwardedWindows(self.hidden[:entries], inputs)


class WindowGraphs(Generic[Result]):
    """Graphs of steps with windows of one width: whole ones, or up to the last hidden states. Only the engine thread
    uses them.
    """

    def __init__(
        self, width: int, padding_row: int, device: torch.device, adapters: AdapterTables | None = None
    ) -> None:
        """`adapters` is None for steps in which no token uses any."""
        self._adapters = adapters
        self._buffer: AdapterBuffer | None = None
        self._width = width
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs[Result](device)
        self._packed = torch.empty(0, dtype=torch.int64)

    def capture(
        self, step: Callable[[Windows, StepAdapters | None], Result], sizes: Sequence[int], memory: Any
    ) -> None:
        """Captures a graph for each number of windows. `step` is a function of windows and the adapters of their
        tokens.
        """
        self._buffer = buffer = adapter_buffer(self._adapters, [size * self._width for size in sizes])
        self._packed = torch.full(
            (2 * max(sizes, default=0),), self._padding_row, dtype=torch.int64, device=self._device
        )
        self._graphs.capture(
            lambda size: step(self._windows(size), None if buffer is None else buffer.view(size * self._width)),
            sizes,
            memory,
        )

    def prepare(self, plan: CheckedPlan) -> tuple[Windows, Callable[[], Result]] | None:
        """Writes the windows of a plan to where the fitting graph reads them, and returns them and a function that
        replays it; None where no graph fits. The result begins with the plan's; the next replay overwrites it.
        """
        count = len(plan.decodes)
        size = self._graphs.fitting(count)
        if size is None or plan.widths is None:
            return None
        packed = np.full(2 * size, self._padding_row, dtype=np.int64)
        packed[:count], packed[size : size + count] = plan.decodes, plan.widths
        overwrite(self._packed[: 2 * size], packed)
        if self._buffer is not None and plan.adapters is not None:
            self._buffer.write(plan.adapters, size * self._width)
        windows = Windows(self._packed[:count], self._packed[size : size + count], self._width)
        return windows, partial(self._graphs.replay, size)

    def _windows(self, size: int) -> Windows:
        return Windows(self._packed[:size], self._packed[size : 2 * size], self._width)

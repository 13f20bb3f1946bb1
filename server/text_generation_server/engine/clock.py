"""Times of the parts of a step, on the host and, where kernels run behind it, on the device."""

import time

import torch

from .requests import Timings


class StepClock:
    """Marks the borders of concat, forward and decode; read once the step's results are on the host.

    On CUDA the border between forward and decode is an event, because the host runs ahead of the kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._start = self._concat_end = self._forward_end = time.perf_counter_ns()
        self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) if device.type == "cuda" else None

    def forward_begins(self) -> None:
        """Ends concat."""
        self._concat_end = time.perf_counter_ns()
        if self._events:
            self._events[0].record()

    def forward_ends(self) -> None:
        """Begins decode."""
        self._forward_end = time.perf_counter_ns()
        if self._events:
            self._events[1].record()

    def timings(self) -> Timings:
        """Durations until now. The device has finished: the caller holds the step's results."""
        end = time.perf_counter_ns()
        forward = self._forward_end - self._concat_end
        if self._events:
            forward = int(self._events[0].elapsed_time(self._events[1]) * 1e6)
        concat = self._concat_end - self._start
        return Timings(concat, forward, max(0, end - self._start - concat - forward), end - self._start)

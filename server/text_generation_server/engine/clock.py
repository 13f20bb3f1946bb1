"""Times of steps, and idle time of the device between them."""

import time
from dataclasses import dataclass

import torch


class Mark:
    """A moment in the order of the device's work: an event on CUDA, the time of day on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self.host_ns = time.perf_counter_ns()
        """When it was queued."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Returns when the device has come there. Other threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()

    def has_passed(self) -> bool:
        """Whether the device has come there."""
        return self._event is None or self._event.query()

    def until(self, later: "Mark") -> int:
        """Nanoseconds between two moments that have passed."""
        if self._event is None or later._event is None:
            return later.host_ns - self.host_ns
        return int(self._event.elapsed_time(later._event) * 1e6)


@dataclass(frozen=True)
class MaskWait:
    """Between the forward pass of a step and its choice, which needs masks."""

    computed: Mark
    """The end of the forward pass."""
    begun: Mark
    """The begin of the choice."""
    was_idle: bool
    """The forward pass had ended before the masks came. Otherwise the time between is that of their upload."""

    @property
    def total_ns(self) -> int:
        """For steps whose results are on the host."""
        return self.computed.until(self.begun)


@dataclass(frozen=True)
class StepTime:
    """The borders of one step, and the end of the step before it."""

    begin: Mark
    end: Mark
    previous_end: Mark | None
    wait: MaskWait | None = None
    """Of a step with constrained rows."""

    @property
    def forward_ns(self) -> int:
        """From the embedding to the chosen tokens, without the wait. For steps whose results are on the host."""
        return self.begin.until(self.end) - self._wait_ns

    @property
    def idle_ns(self) -> int:
        """Between the step before and this one, and while this one's choice waited for masks."""
        before = 0 if self.previous_end is None else max(0, self.previous_end.until(self.begin))
        return before + self._wait_ns

    @property
    def mask_wait_ns(self) -> int:
        """How long the device had nothing to do because masks were late; 0 where they were in time."""
        return self._wait_ns if self.wait is not None and self.wait.was_idle else 0

    @property
    def _wait_ns(self) -> int:
        return 0 if self.wait is None else self.wait.total_ns

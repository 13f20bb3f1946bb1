"""Durations of steps, and idle time of the device between them."""

import time
from dataclasses import dataclass

import torch


class Mark:
    """A point in the order of the device's work: an event on CUDA, a time on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self.host_ns = time.perf_counter_ns()
        """When the host queued it."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Waits until the device has passed the mark. Other threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()

    def has_passed(self) -> bool:
        """Whether the device has passed the mark."""
        return self._event is None or self._event.query()

    def until(self, later: "Mark") -> int:
        """Returns the nanoseconds between two marks that have passed."""
        if self._event is None or later._event is None:
            return later.host_ns - self.host_ns
        return int(self._event.elapsed_time(later._event) * 1e6)


@dataclass(frozen=True)
class MaskWait:
    """The time between the forward pass of a step and its sampling, which needs masks."""

    computed: Mark
    """The end of the forward pass."""
    begun: Mark
    """The begin of sampling."""
    was_idle: bool
    """Whether the forward pass had ended before the masks came. Otherwise the time is that of their upload."""

    @property
    def total_ns(self) -> int:
        """The nanoseconds of the wait, for steps whose results are on the host."""
        return self.computed.until(self.begun)


@dataclass(frozen=True)
class StepTime:
    """Begin and end of one step, and the end of the previous step."""

    begin: Mark
    end: Mark
    previous_end: Mark | None
    wait: MaskWait | None = None
    """The wait of a step with constrained rows."""
    encoded: Mark | None = None
    """Where the encoder of media ends, with which the step begins."""

    @property
    def forward_ns(self) -> int:
        """The time from the embedding, or the encoder of media, to the sampled tokens, without the wait. The results
        must be on the host.
        """
        return self.begin.until(self.end) - self._wait_ns

    @property
    def encode_ns(self) -> int:
        """The part of it that the encoder took."""
        return 0 if self.encoded is None else self.begin.until(self.encoded)

    @property
    def idle_ns(self) -> int:
        """The time between the previous step and this one, and while this one's sampling waited for masks."""
        before = 0 if self.previous_end is None else max(0, self.previous_end.until(self.begin))
        return before + self._wait_ns

    @property
    def mask_wait_ns(self) -> int:
        """How long the device was idle because masks were late; 0 where they were in time."""
        return self._wait_ns if self.wait is not None and self.wait.was_idle else 0

    @property
    def _wait_ns(self) -> int:
        return 0 if self.wait is None else self.wait.total_ns

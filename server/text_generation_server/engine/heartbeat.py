"""Heartbeat of the engine's threads: what they work on, and whether one hangs. This module imports no torch."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import EngineFailed

STALL_LIMIT_S = 300.0
"""Limit of a command, or of a step without a limit of its own. A long prefill on a CPU takes minutes."""


@dataclass(frozen=True)
class _Work:
    since: float
    limit_s: float


class Heartbeat:
    """Each thread reports its work; any thread may call `check`."""

    def __init__(self, default_limit_s: float = STALL_LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._default_limit_s = default_limit_s
        self._clock = clock
        self._work: dict[str, _Work] = {}
        """The current work of each thread."""

    def begin(self, thread: str, limit_s: float = 0.0) -> None:
        """Notes that `thread` begins work that may take `limit_s`; 0: the default."""
        self._work[thread] = _Work(self._clock(), limit_s or self._default_limit_s)

    def end(self, thread: str) -> None:
        """Notes that `thread` is idle."""
        self._work.pop(thread, None)

    @contextmanager
    def paused(self, thread: str) -> Generator[None, None, None]:
        """Stops the clock while `thread` waits for something with a limit of its own; its time then begins anew."""
        work = self._work.pop(thread)
        try:
            yield
        finally:
            self.begin(thread, work.limit_s)

    def check(self) -> None:
        """Raises `EngineFailed` when a thread has worked for longer than its limit."""
        now = self._clock()
        for work in list(self._work.values()):
            if now - work.since > work.limit_s:
                raise EngineFailed(f"the engine has made no progress for more than {work.limit_s:g} s")

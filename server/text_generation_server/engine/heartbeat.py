"""Heartbeat of the engine's threads: what they work on, and whether one of them hangs. Imports no torch."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import EngineFailed

STALL_LIMIT_S = 300.0
"""A command or a step without a limit of its own may take so long. A long prefill on a CPU takes minutes."""


@dataclass(frozen=True)
class _Work:
    since: float
    limit_s: float


class Heartbeat:
    """Each thread tells what it does; `check` may be called from any thread."""

    def __init__(self, default_limit_s: float = STALL_LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._default_limit_s = default_limit_s
        self._clock = clock
        self._work: dict[str, _Work] = {}
        """By thread: the one thing that it works on."""

    def begin(self, thread: str, limit_s: float = 0.0) -> None:
        """`thread` turns to a new piece of work, which may take `limit_s`; 0: the default."""
        self._work[thread] = _Work(self._clock(), limit_s or self._default_limit_s)

    def end(self, thread: str) -> None:
        """`thread` has nothing to do."""
        self._work.pop(thread, None)

    @contextmanager
    def paused(self, thread: str) -> Generator[None, None, None]:
        """`thread` waits inside its work for something that has a limit of its own; then its time begins anew."""
        work = self._work.pop(thread)
        try:
            yield
        finally:
            self.begin(thread, work.limit_s)

    def check(self) -> None:
        """Raises `EngineFailed` when a thread has worked on one thing for longer than it may."""
        now = self._clock()
        for work in list(self._work.values()):
            if now - work.since > work.limit_s:
                raise EngineFailed(f"the engine has made no progress for more than {work.limit_s:g} s")

"""The engine thread: commands in by queue, futures out.

One thread owns every tensor. Callers on other threads submit functions of the engine and get concurrent futures.
An `EngineError` goes to the caller alone. Any other exception poisons the engine: nothing is known of its state, so no
further command runs, health turns red and the process is expected to exit. Imports no torch.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from ..errors import EngineError, EngineFailed, NotReady
from .requests import ShardEngine, ShardInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

STALL_LIMIT_S = 300.0
"""A command that runs longer than this makes the shard unhealthy. A long prefill on a CPU takes minutes."""


@dataclass(frozen=True)
class _Command:
    run: Callable[[ShardEngine], Any]
    future: Future[Any]


class EngineWorker:
    """Owns the engine thread. Methods may be called from any thread.

    `build` runs on the engine thread and loads the model; its failure is the exception of `ready`.
    """

    def __init__(
        self,
        build: Callable[[], ShardEngine],
        stall_limit_s: float = STALL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._build = build
        self._stall_limit_s = stall_limit_s
        self._clock = clock
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.ready: Future[ShardInfo] = Future()
        """Resolved when the model is loaded, or with the reason why it could not be."""
        self.failed: Future[None] = Future()
        """Resolved when the engine was poisoned."""

    def start(self) -> None:
        """Begins to load the model."""
        self._thread.start()

    def submit(self, run: Callable[[ShardEngine], T]) -> "Future[T]":
        """Queues `run` for the engine thread. The future fails with an `EngineError`, never with anything else."""
        future: Future[T] = Future()
        with self._lock:
            error = self._refusal()
            if error is None:
                self._commands.put(_Command(run, future))
        if error is not None:
            future.set_exception(error)
        return future

    def info(self) -> ShardInfo:
        """Facts of the loaded model; waits for nothing. Raises `NotReady` while it loads."""
        self.check_health()
        return self.ready.result()

    def check_health(self) -> None:
        """Raises `NotReady` while the model loads and `EngineFailed` when the thread died or makes no progress."""
        error = self._refusal()
        if error is not None:
            raise error
        busy_since = self._busy_since
        if busy_since is not None and self._clock() - busy_since > self._stall_limit_s:
            raise EngineFailed(f"the engine has made no progress for more than {self._stall_limit_s:.0f} s")

    def stop(self, timeout_s: float) -> bool:
        """Takes no further command, lets those that were queued finish. False if the thread still runs then."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _refusal(self) -> EngineError | None:
        """Why a command cannot be taken now."""
        if self.failed.done():
            return EngineFailed("the engine failed; the shard must be restarted")
        if self._closed:
            return EngineFailed("the shard is stopping")
        if not self.ready.done():
            return NotReady("the model is still loading")
        if self.ready.exception() is not None or not self._thread.is_alive():
            return EngineFailed("the model could not be loaded")
        return None

    def _run(self) -> None:
        try:
            engine = self._build()
            info = engine.info
        except BaseException as error:
            self.ready.set_exception(error)
            return
        self.ready.set_result(info)
        while (command := self._commands.get()) is not None:
            self._busy_since = self._clock()
            poisoned = self._execute(engine, command) or self._use_pause(engine)
            self._busy_since = None
            if poisoned:
                self._drain()
                return
        engine.close()

    def _execute(self, engine: ShardEngine, command: _Command) -> bool:
        """Runs one command. True when the engine's state can no longer be trusted."""
        if not command.future.set_running_or_notify_cancel():
            return False
        try:
            command.future.set_result(command.run(engine))
            return False
        except EngineFailed as error:
            return self._poison(command, error)
        except EngineError as error:
            command.future.set_exception(error)
            return False
        except BaseException as error:
            return self._poison(command, error)

    def _use_pause(self, engine: ShardEngine) -> bool:
        """What the engine does while the caller has its result. True when its state can no longer be trusted."""
        try:
            engine.between_calls()
            return False
        except BaseException as error:
            self._fail(error)
            return True

    def _fail(self, error: BaseException) -> None:
        logger.error("the engine failed", exc_info=error)
        with self._lock:
            self.failed.set_result(None)

    def _poison(self, command: _Command, error: BaseException) -> bool:
        self._fail(error)
        failure = error if isinstance(error, EngineFailed) else EngineFailed("the engine failed; see the shard's log")
        command.future.set_exception(failure)
        return True

    def _drain(self) -> None:
        """Answers what was queued behind the command that poisoned the engine."""
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command.future.set_exception(EngineFailed("the engine failed; the shard must be restarted"))

"""The engine's two threads: the engine thread launches steps in order, the replies thread waits for them and replies.

The engine thread owns every tensor. Callers on other threads get concurrent futures. It never waits for the results of
a step, so the next plan is on the device before the last one is read. Where a plan has constrained rows, it waits for
their masks once the forward pass is on the device.
An `EngineError` goes to the caller alone. Any other exception poisons the engine: nothing is known of its state, so no
further command runs, health turns red and the process is expected to exit. Imports no torch.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from ..errors import EngineError, EngineFailed, NotReady, PlanRefused, UnsupportedModel
from .adapter_requests import AdapterLoaded, AdapterSource
from .heartbeat import STALL_LIMIT_S, Heartbeat
from .masks import WAIT_LIMIT_S, MaskInbox, MaskLimits, WaitEnded
from .plans import PlanOrder
from .requests import (
    PendingStep,
    ShardEngine,
    ShardInfo,
    StepMasks,
    StepPlan,
    StepReply,
    WarmupLimits,
    WarmupResult,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class _Command:
    run: Callable[[ShardEngine], Any]
    future: Future[Any]


@dataclass(frozen=True)
class _Planned:
    plan: StepPlan
    future: Future[StepReply]


@dataclass(frozen=True)
class _Launched:
    step: PendingStep
    limit_s: float
    future: Future[StepReply]


class EngineWorker:
    """Owns both threads. Any thread may call its methods.

    `build` runs on the engine thread and loads the model; its failure is the exception of `ready`.
    """

    def __init__(
        self,
        build: Callable[[], ShardEngine],
        stall_limit_s: float = STALL_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        mask_limit_s: float = WAIT_LIMIT_S,
    ) -> None:
        self._build = build
        self._heartbeat = Heartbeat(stall_limit_s, clock)
        self._commands: SimpleQueue[_Command | _Planned | None] = SimpleQueue()
        self._launched: SimpleQueue[_Launched | None] = SimpleQueue()
        self._plans = PlanOrder[_Planned]()
        self._masks = MaskInbox(mask_limit_s)
        self._limit_before_s = 0.0
        """The limit of the plan that was launched last."""
        self._lock = threading.Lock()
        self._closed = False
        self._engine: ShardEngine | None = None
        """Once the model is loaded."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._replies = threading.Thread(target=self._run_replies, name="replies", daemon=True)
        self.ready: Future[ShardInfo] = Future()
        """Resolved when the model is loaded, or with the reason why it could not be."""
        self.failed: Future[None] = Future()
        """Resolved when the engine was poisoned."""

    def start(self) -> None:
        """Begins to load the model."""
        self._thread.start()
        self._replies.start()

    def submit(self, run: Callable[[ShardEngine], T]) -> "Future[T]":
        """Queues `run` for the engine thread. The future fails with an `EngineError`, never with anything else."""
        future: Future[T] = Future()
        self._put(_Command(run, future), future)
        return future

    def step(self, plan: StepPlan) -> "Future[StepReply]":
        """Queues a plan; its turn follows from its number. The future fails with an `EngineError`: `NotReady` before
        Warmup, whatever the number.
        """
        future: Future[StepReply] = Future()
        self._put(_Planned(plan, future), future)
        return future

    def constrain(self, masks: StepMasks) -> None:
        """Keeps masks for the plan of their number, which may wait for them or come later. Returns at once.

        Raises `InvalidRequest`, as `MaskInbox.put` does, and why nothing can be taken now.
        """
        error = self._refusal()
        if error is not None:
            raise error
        self._masks.put(masks)

    def expect_no_masks(self) -> None:
        """Ends all waits for masks, because no call comes any more."""
        self._masks.close(EngineFailed("the shard is stopping"))

    def warmup(self, limits: WarmupLimits) -> "Future[WarmupResult]":
        """Sizes pool and rows, once. The first plan after it is number 0."""

        def warm_up(engine: ShardEngine) -> WarmupResult:
            result = engine.warmup(limits)
            self._masks.open(MaskLimits(result.max_masks, engine.info.vocab_size))
            return result

        return self.submit(warm_up)

    def clear_cache(self, request_id: int | None) -> "Future[None]":
        """Drops one request, or all; then plans begin again at number 0, and those that wait are refused.

        With all, no step waits for masks any more. What was queued before is executed nevertheless: this rank must
        launch what others launch to which the masks came in time.
        """

        def clear(engine: ShardEngine) -> None:
            engine.clear_cache(request_id)
            if request_id is None:
                self._masks.restart()
                self._refuse(
                    self._plans.restart(), PlanRefused("ClearCache came before the plan that this one follows")
                )

        future: Future[None] = Future()
        if self._put(_Command(clear, future), future) and request_id is None:
            self._masks.abandon()
        return future

    def load_adapter(self, source: AdapterSource) -> "Future[AdapterLoaded]":
        """Loads an adapter on a thread of its own, beside the steps. An error harms nothing else."""
        future: Future[AdapterLoaded] = Future()
        future.set_running_or_notify_cancel()
        engine, error = self._engine, self._refusal()
        if error is not None or engine is None:
            future.set_exception(error or NotReady("the model is still loading"))
            return future

        def load() -> None:
            try:
                future.set_result(engine.load_adapter(source))
            except BaseException as error:
                future.set_exception(error)

        # Nobody waits for it at the end of the process, however slow its folder is.
        threading.Thread(target=load, name="adapter", daemon=True).start()
        return future

    def info(self) -> ShardInfo:
        """Returns facts about the loaded model without waiting. Raises `NotReady` while it loads."""
        self.check_health()
        return self.ready.result()

    def check_media(self) -> None:
        """Raises `UnsupportedModel` where the model has no encoder that is served, and why nothing can be taken now."""
        if self.info().media is None:
            raise UnsupportedModel("this shard serves text alone: its `Info` has no `media`")

    def check_health(self) -> None:
        """Raises `NotReady` while the model loads and `EngineFailed` when a thread died or makes no progress."""
        error = self._refusal()
        if error is not None:
            raise error
        self._heartbeat.check()

    def stop(self, timeout_s: float) -> bool:
        """Takes no further command and lets queued ones finish. Returns False if a thread still runs then."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._commands.put(None)
        self.expect_no_masks()
        deadline = time.monotonic() + timeout_s
        for thread in (self._thread, self._replies):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not (self._thread.is_alive() or self._replies.is_alive())

    def _put(self, item: _Command | _Planned, future: Future[Any]) -> bool:
        """Queues `item`. Returns False, with the reason in `future`, where it cannot be taken now."""
        # From here on nobody can cancel it, because other ranks execute it too.
        future.set_running_or_notify_cancel()
        with self._lock:
            error = self._refusal()
            if error is None:
                self._commands.put(item)
        if error is not None:
            future.set_exception(error)
        return error is None

    def _refusal(self) -> EngineError | None:
        """Returns why a command cannot be taken now, or None."""
        if self.failed.done():
            return _must_restart()
        if self._closed:
            return EngineFailed("the shard is stopping")
        if not self.ready.done():
            return NotReady("the model is still loading")
        if self.ready.exception() is not None or not self._thread.is_alive():
            return EngineFailed("the model could not be loaded")
        return None

    def _run(self) -> None:
        """Runs the engine thread."""
        try:
            self._serve()
        finally:
            self._launched.put(None)

    def _serve(self) -> None:
        try:
            engine = self._build()
            info = engine.info
        except BaseException as error:
            self.ready.set_exception(error)
            return
        self._engine = engine
        self.ready.set_result(info)
        while (item := self._commands.get()) is not None and not self.failed.done():
            self._heartbeat.begin("engine")
            if isinstance(item, _Planned):
                self._take(engine, item)
            else:
                self._guarded(item.future, lambda item=item: item.future.set_result(item.run(engine)))
            self._heartbeat.end("engine")
        if self.failed.done():
            self._drain(item)
            return
        self._refuse(self._plans.restart(), EngineFailed("the shard is stopping"))
        engine.close()

    def _take(self, engine: ShardEngine, planned: _Planned) -> None:
        """Launches the plans that are due now that this one has come."""

        def put() -> None:
            # A plan before Warmup is meant for an earlier start of the shards on the same sockets, whose loss the
            # router has not noticed. Its number means nothing here; `NotReady` tells the router that the shards were
            # lost.
            engine.check_ready()
            self._plans.put(planned.plan.number, planned)

        if not self._guarded(planned.future, put):
            return
        for due in self._plans.due():
            if not self._guarded(due.future, lambda due=due: self._launch(engine, due)):
                self._refuse(self._plans.fail(), PlanRefused("a plan before this one failed"))

    def _launch(self, engine: ShardEngine, due: _Planned) -> None:
        limit_s, before_s = due.plan.limit_ms / 1000, self._limit_before_s
        # Where the device's queue is full, a launch waits for the previous step.
        self._heartbeat.begin("engine", limit_s + before_s if limit_s else 0.0)
        self._limit_before_s = limit_s
        if not due.plan.constrained:
            self._masks.skip(due.plan.number)
        try:
            step = engine.step(due.plan, partial(self._wait_for_masks, before_s=before_s))
            self._launched.put(_Launched(step, limit_s, due.future))
        except WaitEnded as ended:
            # The plans after it are launched as well; see `clear_cache`.
            due.future.set_exception(ended.told)

    def _wait_for_masks(self, number: int, before_s: float) -> StepMasks:
        """Waits for masks, with a limit of its own, during which the engine is healthy. `before_s` is the limit of the
        previous step.
        """
        with self._heartbeat.paused("engine"):
            return self._masks.take(number, before_s)

    def _run_replies(self) -> None:
        """Runs the replies thread, which waits for steps in their order."""
        while (launched := self._launched.get()) is not None:
            if self.failed.done():
                launched.future.set_exception(_must_restart())
                continue
            self._heartbeat.begin("replies", launched.limit_s)
            self._guarded(launched.future, lambda each=launched: each.future.set_result(each.step.result()))
            self._heartbeat.end("replies")

    def _guarded(self, future: Future[Any], action: Callable[[], None]) -> bool:
        """Runs what resolves a future, or will. An error goes to the future; false then. Any but an expected one
        poisons the engine.
        """
        try:
            action()
            return True
        except EngineFailed as error:
            self._poison(future, error, error)
        except EngineError as error:
            future.set_exception(error)
        except BaseException as error:
            self._poison(future, error, EngineFailed("the engine failed; see the shard's log"))
        return False

    def _poison(self, future: Future[Any], cause: BaseException, told: EngineFailed) -> None:
        logger.error("the engine failed", exc_info=cause)
        with self._lock:
            if not self.failed.done():
                self.failed.set_result(None)
                self._masks.close(_must_restart())
                # The engine thread may wait for a command.
                self._commands.put(None)
        future.set_exception(told)

    def _refuse(self, waiting: list[_Planned], error: EngineError) -> None:
        for planned in waiting:
            planned.future.set_exception(error)

    def _drain(self, item: _Command | _Planned | None) -> None:
        """Answers `item` and all that was queued after it, because the engine is poisoned."""
        waiting = [item, *self._plans.restart()]
        while not self._commands.empty():
            waiting.append(self._commands.get())
        for each in waiting:
            if each is not None:
                each.future.set_exception(_must_restart())


def _must_restart() -> EngineFailed:
    return EngineFailed("the engine failed; the shard must be restarted")

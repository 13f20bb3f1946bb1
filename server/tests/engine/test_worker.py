"""The engine thread: order, errors, poison, heartbeat."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import cast

import pytest

from text_generation_server.engine.requests import (
    MaskSource,
    ServingLimits,
    ShardEngine,
    ShardInfo,
    StepCost,
    StepMasks,
    StepPlan,
    StepReply,
    WarmupLimits,
    WarmupResult,
)
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.errors import EngineFailed, InvalidRequest, ModelFilesError, NotReady, PlanRefused

INFO = ShardInfo("float32", "cpu", 1, 64, 64, (), "torch", "0")
WAIT_S = 10.0


class StubEngine:
    """Records the thread it lives on."""

    info = INFO

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.closed = False
        self.warm = True
        self.broken: Exception | None = None
        """Raised by the next launch."""
        self.launched: list[object] = []
        self.readable = threading.Event()
        """Set: results are there."""
        self.readable.set()
        self.launchable = threading.Event()
        """Set: launches wait for nothing."""
        self.launchable.set()
        self.unreadable: Exception | None = None
        """Raised by whoever reads the next result."""

    def step(self, plan: StepPlan, masks: MaskSource) -> "StubStep":
        self.launched.append(plan.number)
        self.launchable.wait(WAIT_S)
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        if plan.constrained:
            masks(plan.number)
        return StubStep(plan.number, self)

    def clear_cache(self, request_id: int | None) -> None:
        self.launched.append("clear")

    def check_ready(self) -> None:
        if not self.warm:
            raise NotReady("call Warmup")

    def warmup(self, limits: WarmupLimits) -> WarmupResult:
        self.warm = True
        return WarmupResult(ServingLimits(1, 1, 1, 1), StepCost(), [], 8)

    def close(self) -> None:
        self.closed = True


@dataclass
class StubStep:
    number: int
    engine: StubEngine

    def result(self) -> StepReply:
        self.engine.readable.wait(WAIT_S)
        if self.engine.unreadable is not None:
            raise self.engine.unreadable
        return StepReply(self.number)


def stub() -> ShardEngine:
    return cast("ShardEngine", StubEngine())


def stub_of(worker: EngineWorker) -> StubEngine:
    return worker.submit(lambda engine: cast("StubEngine", engine)).result(WAIT_S)


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    worker = EngineWorker(stub)
    worker.start()
    worker.ready.result(WAIT_S)
    yield worker
    worker.stop(WAIT_S)


def test_commands_run_in_order_on_the_thread_that_built_the_engine(worker: EngineWorker) -> None:
    order: list[int] = []
    futures = [worker.submit(lambda _, i=i: order.append(i)) for i in range(20)]
    for future in futures:
        future.result(WAIT_S)
    assert order == list(range(20))
    built, ran = worker.submit(lambda engine: (cast("StubEngine", engine).thread, threading.get_ident())).result(WAIT_S)
    assert built == ran != threading.get_ident()
    assert worker.info() == INFO


def test_an_expected_error_goes_to_its_caller_alone(worker: EngineWorker) -> None:
    def fail(_: ShardEngine) -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match="no"):
        worker.submit(fail).result(WAIT_S)
    assert worker.submit(lambda _: 1).result(WAIT_S) == 1
    worker.check_health()


@pytest.mark.parametrize("error", [ValueError("secret path"), EngineFailed("a rank is lost")])
def test_any_other_error_poisons_the_engine(worker: EngineWorker, error: Exception) -> None:
    entered, release = threading.Event(), threading.Event()

    def fail(_: ShardEngine) -> None:
        entered.set()
        release.wait(WAIT_S)
        raise error

    failing = worker.submit(fail)
    entered.wait(WAIT_S)
    queued = worker.submit(lambda _: 1)
    release.set()
    with pytest.raises(EngineFailed) as caught:
        failing.result(WAIT_S)
    assert "secret" not in str(caught.value)
    with pytest.raises(EngineFailed):
        queued.result(WAIT_S)
    with pytest.raises(EngineFailed):
        worker.submit(lambda _: 1).result(WAIT_S)
    with pytest.raises(EngineFailed):
        worker.check_health()
    assert worker.failed.done()


def test_plans_run_in_the_order_of_their_numbers(worker: EngineWorker) -> None:
    futures = [worker.step(StepPlan(number)) for number in (1, 0, 2, 4, 3)]
    assert [future.result(WAIT_S).number for future in futures] == [1, 0, 2, 4, 3]
    assert stub_of(worker).launched == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidRequest, match="`number` 4 is out of turn"):
        worker.step(StepPlan(4)).result(WAIT_S)
    assert worker.step(StepPlan(5)).result(WAIT_S).number == 5


def test_a_plan_is_launched_before_the_one_ahead_of_it_is_read(worker: EngineWorker) -> None:
    engine = stub_of(worker)
    engine.readable.clear()
    first, second = worker.step(StepPlan(0)), worker.step(StepPlan(1))
    assert stub_of(worker).launched == [0, 1]
    assert not first.done()
    engine.readable.set()
    assert [future.result(WAIT_S).number for future in (first, second)] == [0, 1]


def test_a_failed_plan_ends_all_later_ones_until_everything_is_cleared(worker: EngineWorker) -> None:
    engine = stub_of(worker)
    later = worker.step(StepPlan(2))
    assert worker.step(StepPlan(0)).result(WAIT_S).number == 0
    engine.broken = InvalidRequest("bad plan")
    with pytest.raises(InvalidRequest, match="bad plan"):
        worker.step(StepPlan(1)).result(WAIT_S)
    for refused in (later, worker.step(StepPlan(3)), worker.step(StepPlan(0))):
        with pytest.raises(PlanRefused):
            refused.result(WAIT_S)
    worker.clear_cache(7).result(WAIT_S)
    with pytest.raises(PlanRefused):
        worker.step(StepPlan(2)).result(WAIT_S)
    worker.clear_cache(None).result(WAIT_S)
    assert worker.step(StepPlan(0)).result(WAIT_S).number == 0
    assert engine.launched == [0, 1, "clear", "clear", 0]
    worker.check_health()


def test_clearing_everything_answers_a_plan_whose_turn_never_came(worker: EngineWorker) -> None:
    waiting = worker.step(StepPlan(1))
    worker.clear_cache(None).result(WAIT_S)
    with pytest.raises(PlanRefused, match="ClearCache came"):
        waiting.result(WAIT_S)
    assert worker.step(StepPlan(0)).result(WAIT_S).number == 0


@pytest.mark.parametrize("number", [0, 1, 9621])
def test_plans_before_warmup_leave_nothing_behind(worker: EngineWorker, number: int) -> None:
    """Their numbers go on from those of an earlier start of the shard."""
    engine = stub_of(worker)
    engine.warm = False
    with pytest.raises(NotReady):
        worker.step(StepPlan(number)).result(WAIT_S)
    worker.clear_cache(None).result(WAIT_S)
    with pytest.raises(NotReady):
        worker.step(StepPlan(number)).result(WAIT_S)
    worker.warmup(WarmupLimits(1, 1)).result(WAIT_S)
    worker.constrain(StepMasks(0))
    assert worker.step(StepPlan(0, constrained=[0])).result(WAIT_S).number == 0
    assert engine.launched == ["clear", 0]


def test_an_error_that_shows_when_a_step_is_read_poisons_the_engine(worker: EngineWorker) -> None:
    engine = stub_of(worker)
    engine.readable.clear()
    engine.unreadable = RuntimeError("CUDA error: /secret/path")
    steps = [worker.step(StepPlan(number)) for number in (0, 1, 3)]
    stub_of(worker)
    engine.readable.set()
    for step in steps:
        with pytest.raises(EngineFailed) as caught:
            step.result(WAIT_S)
        assert "secret" not in str(caught.value)
    worker.failed.result(WAIT_S)
    with pytest.raises(EngineFailed):
        worker.submit(lambda _: 1).result(WAIT_S)
    with pytest.raises(EngineFailed):
        worker.check_health()
    assert worker.stop(WAIT_S)


def test_a_poisoned_engine_waits_for_no_masks(worker: EngineWorker) -> None:
    engine = stub_of(worker)
    engine.readable.clear()
    engine.unreadable = RuntimeError("CUDA error")
    steps = [worker.step(StepPlan(0)), worker.step(StepPlan(1, constrained=[0]))]
    engine.readable.set()
    for step in steps:
        with pytest.raises(EngineFailed):
            step.result(WAIT_S)
    assert worker.stop(WAIT_S)


def test_not_ready_while_the_model_loads() -> None:
    release = threading.Event()

    def build() -> ShardEngine:
        release.wait(WAIT_S)
        return stub()

    worker = EngineWorker(build)
    worker.start()
    with pytest.raises(NotReady):
        worker.check_health()
    with pytest.raises(NotReady):
        worker.submit(lambda _: 1).result(WAIT_S)
    release.set()
    worker.ready.result(WAIT_S)
    worker.check_health()
    assert worker.stop(WAIT_S)


def test_a_model_that_cannot_be_loaded() -> None:
    def build() -> ShardEngine:
        raise ModelFilesError("no weights")

    worker = EngineWorker(build)
    worker.start()
    with pytest.raises(ModelFilesError, match="no weights"):
        worker.ready.result(WAIT_S)
    with pytest.raises(EngineFailed):
        worker.check_health()


def test_a_command_that_takes_too_long_makes_the_engine_unhealthy() -> None:
    now = [0.0]
    worker = EngineWorker(stub, stall_limit_s=5.0, clock=lambda: now[0])
    worker.start()
    worker.ready.result(WAIT_S)
    entered, release = threading.Event(), threading.Event()

    def hang(_: ShardEngine) -> None:
        entered.set()
        release.wait(WAIT_S)

    future = worker.submit(hang)
    entered.wait(WAIT_S)
    now[0] = 4.0
    worker.check_health()
    now[0] = 6.0
    with pytest.raises(EngineFailed, match="no progress for more than 5 s"):
        worker.check_health()
    release.set()
    future.result(WAIT_S)
    worker.submit(lambda _: None).result(WAIT_S)
    worker.check_health()
    assert worker.stop(WAIT_S)


def test_a_step_whose_result_does_not_come_makes_the_engine_unhealthy() -> None:
    now = [0.0]
    worker = EngineWorker(stub, stall_limit_s=5.0, clock=lambda: now[0])
    worker.start()
    worker.ready.result(WAIT_S)
    engine = stub_of(worker)
    reading = threading.Event()
    engine.readable = Signalling(reading)
    step = worker.step(StepPlan(0))
    reading.wait(WAIT_S)
    now[0] = 6.0
    with pytest.raises(EngineFailed, match="no progress for more than 5 s"):
        worker.check_health()
    engine.readable.set()
    step.result(WAIT_S)
    assert worker.stop(WAIT_S)


def test_a_step_has_the_limit_of_its_plan_on_both_threads() -> None:
    now = [0.0]
    worker = EngineWorker(stub, stall_limit_s=100.0, clock=lambda: now[0])
    worker.start()
    worker.ready.result(WAIT_S)
    engine = stub_of(worker)
    reading, launching = threading.Event(), threading.Event()
    engine.readable = Signalling(reading)
    engine.launchable = Signalling(launching)
    first = worker.step(StepPlan(0, limit_ms=2000))
    launching.wait(WAIT_S)
    now[0] = 1.9
    worker.check_health()
    now[0] = 2.1
    with pytest.raises(EngineFailed, match="no progress for more than 2 s"):
        worker.check_health()

    engine.launchable.set()
    reading.wait(WAIT_S)
    worker.check_health()
    now[0] = 4.2
    with pytest.raises(EngineFailed, match="no progress for more than 2 s"):
        worker.check_health()
    engine.readable.set()
    first.result(WAIT_S)
    assert worker.stop(WAIT_S)


def test_a_launch_may_wait_for_the_step_before_it() -> None:
    now = [0.0]
    worker = EngineWorker(stub, stall_limit_s=100.0, clock=lambda: now[0])
    worker.start()
    worker.ready.result(WAIT_S)
    engine = stub_of(worker)
    worker.step(StepPlan(0, limit_ms=2000)).result(WAIT_S)
    launching = threading.Event()
    engine.launchable = Signalling(launching)
    second = worker.step(StepPlan(1, limit_ms=500))
    launching.wait(WAIT_S)
    now[0] = 2.4
    worker.check_health()
    now[0] = 2.6
    with pytest.raises(EngineFailed, match=r"no progress for more than 2\.5 s"):
        worker.check_health()
    engine.launchable.set()
    second.result(WAIT_S)
    assert worker.stop(WAIT_S)


class Signalling(threading.Event):
    """Says when somebody waits for it."""

    def __init__(self, waited_for: threading.Event) -> None:
        super().__init__()
        self._waited_for = waited_for

    def wait(self, timeout: float | None = None) -> bool:
        self._waited_for.set()
        return super().wait(timeout)


def test_stop_finishes_what_was_queued_and_takes_nothing_more(worker: EngineWorker) -> None:
    engines: list[StubEngine] = []
    futures: list[Future[None]] = [
        worker.submit(lambda engine: engines.append(cast("StubEngine", engine))) for _ in range(5)
    ]
    assert worker.stop(WAIT_S)
    assert all(future.done() for future in futures)
    assert engines[0].closed
    with pytest.raises(EngineFailed, match="stopping"):
        worker.submit(lambda _: 1).result(WAIT_S)

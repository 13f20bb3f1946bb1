"""The engine thread: order, errors, poison, heartbeat."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import cast

import pytest

from text_generation_server.engine.requests import ShardEngine, ShardInfo
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.errors import EngineFailed, InvalidRequest, ModelFilesError, NotReady

INFO = ShardInfo("float32", "cpu", 1, 64, 64, (), "torch", "0")
WAIT_S = 10.0


class StubEngine:
    """Records the thread it lives on."""

    info = INFO

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.closed = False
        self.broken: Exception | None = None

    def between_calls(self) -> None:
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        self.closed = True


def stub() -> ShardEngine:
    return cast("ShardEngine", StubEngine())


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


def test_an_error_after_the_result_was_handed_out_poisons_the_engine(worker: EngineWorker) -> None:
    def break_it(engine: ShardEngine) -> int:
        cast("StubEngine", engine).broken = ValueError("secret path")
        return 1

    assert worker.submit(break_it).result(WAIT_S) == 1
    worker.failed.result(WAIT_S)
    with pytest.raises(EngineFailed):
        worker.submit(lambda _: 1).result(WAIT_S)


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
    assert worker.stop(WAIT_S)


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

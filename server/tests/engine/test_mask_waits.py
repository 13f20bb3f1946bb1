"""Steps that wait for their masks on the threads of the worker: order, limits, and what ends a wait."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import pytest
from support.engine_driver import LIMITS, WAIT_S, make_engine, make_request
from support.fake_model import FakeModel
from support.router import mask_write

from text_generation_server.engine.masks import MaskInbox, MaskLimits
from text_generation_server.engine.requests import Chunk, MaskForm, MaskWrite, StepMasks, StepPlan, StepReply
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.errors import EngineFailed, InvalidRequest, MasksMissing, NotReady, PlanRefused

MANY = 2048
T = TypeVar("T")


def serve(model: FakeModel | None = None, **options: object) -> EngineWorker:
    worker = EngineWorker(lambda: make_engine(model, limits=None), **options)  # type: ignore[arg-type]
    worker.start()
    worker.ready.result(WAIT_S)
    worker.warmup(LIMITS).result(WAIT_S)
    return worker


@pytest.fixture(scope="module")
def shared() -> Iterator[EngineWorker]:
    worker = serve()
    yield worker
    worker.stop(WAIT_S)


@pytest.fixture
def worker(shared: EngineWorker) -> EngineWorker:
    shared.clear_cache(None).result(WAIT_S)
    return shared


def first(constrained: bool = True) -> StepPlan:
    """Row 0 gets its first token."""
    return StepPlan(0, admit=[make_request(0, (1, 2))], chunks=[Chunk(0, 0, 2)], constrained=[0] if constrained else [])


def decode(number: int, constrained: bool = True) -> StepPlan:
    return StepPlan(number, decode=[0], constrained=[0] if constrained else [])


def only(number: int, token: int, slot: int = 1) -> StepMasks:
    return StepMasks(number, [mask_write(slot, [token], MaskForm.ONLY)], [0], [slot])


def ids(step: "Future[StepReply]") -> list[int]:
    return list(step.result(WAIT_S).ids)


def test_masks_come_before_or_after_their_plans(worker: EngineWorker) -> None:
    """Two plans under way, masks two ahead, and the last ones long after their plan."""
    worker.constrain(only(2, 12))
    steps = [worker.step(first()), worker.step(decode(1))]
    worker.constrain(only(1, 11))
    assert not steps[0].done()
    worker.constrain(only(0, 10))
    assert [ids(step) for step in steps] == [[10], [11]]
    assert ids(worker.step(decode(2))) == [12]
    assert len(ids(worker.step(decode(3, constrained=False)))) == 1
    last = worker.step(decode(4))
    worker.constrain(StepMasks(4, (), [0], [1]))
    assert ids(last) == [12]


class Bringing(threading.Condition):
    """Whoever waits for it finds that masks have come meanwhile."""

    inbox: MaskInbox

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        if not predicate():
            self.inbox.put(only(1, 5))
        return predicate()


def test_masks_that_come_while_they_are_waited_for_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Condition", Bringing)
    inbox = Bringing.inbox = MaskInbox()
    inbox.open(MaskLimits(MANY, 64))
    inbox.put(only(0, 5))
    assert [inbox.take(number).late for number in (0, 1)] == [False, True]


def test_a_reply_tells_how_long_late_masks_were_waited_for() -> None:
    engine = make_engine()

    def masks(number: int) -> StepMasks:
        return dataclasses.replace(only(number, 5), late=number == 1)

    plans = [first(), decode(1), decode(2), decode(3, constrained=False)]
    replies = [engine.step(plan, masks).result() for plan in plans]
    waits = [reply.timings.mask_wait_ns for reply in replies]
    assert (waits[0], waits[2], waits[3]) == (0, 0, 0)
    assert 0 < waits[1] <= replies[1].timings.idle_ns


def test_masks_that_never_come_are_named(worker: EngineWorker) -> None:
    impatient = serve(mask_limit_s=0.01)
    try:
        behind = impatient.step(decode(1))
        with pytest.raises(MasksMissing, match=r"no Constrain with `number` 0 came within 0.01 s; call ClearCache"):
            impatient.step(first()).result(WAIT_S)
        with pytest.raises(PlanRefused):
            behind.result(WAIT_S)
        with pytest.raises(InvalidRequest, match="`number` 0 is out of turn"):
            impatient.constrain(only(0, 5))
        impatient.clear_cache(None).result(WAIT_S)
        impatient.constrain(only(0, 5))
        assert ids(impatient.step(first())) == [5]
    finally:
        impatient.stop(WAIT_S)


def test_the_wait_begins_when_the_step_before_may_be_done() -> None:
    """Masks follow from its tokens: where steps may take longer than masks, they may come later too."""
    impatient = serve(mask_limit_s=0.01)
    try:
        impatient.constrain(only(0, 5))
        impatient.step(dataclasses.replace(first(), limit_ms=20)).result(WAIT_S)
        with pytest.raises(MasksMissing, match=r"no Constrain with `number` 1 came within 0.03 s"):
            impatient.step(decode(1)).result(WAIT_S)
    finally:
        impatient.stop(WAIT_S)


def test_clearing_everything_ends_the_wait_but_not_what_other_ranks_may_compute() -> None:
    """The plan behind is launched too: on a rank whose masks came in time it is on the device already."""
    model = FakeModel()
    worker = serve(model)
    try:
        before = model.forwards
        steps = [worker.step(first()), worker.step(decode(1))]
        cleared = worker.clear_cache(None)
        for number, step in enumerate(steps):
            with pytest.raises(PlanRefused, match=f"ClearCache came before the masks of plan {number}"):
                step.result(WAIT_S)
        cleared.result(WAIT_S)
        assert model.forwards == before + 2
        worker.constrain(only(0, 6))
        assert ids(worker.step(first())) == [6]
    finally:
        worker.stop(WAIT_S)


def test_masks_of_what_was_cleared_are_gone(worker: EngineWorker) -> None:
    worker.constrain(only(0, 7))
    worker.clear_cache(None).result(WAIT_S)
    assert ids(worker.step(first(constrained=False))) == [int(FakeModel().logits_after([1, 2]).argmax())]


def test_clearing_one_request_does_not_end_a_wait(worker: EngineWorker) -> None:
    step = worker.step(first())
    cleared = worker.clear_cache(9)
    worker.constrain(only(0, 8))
    assert ids(step) == [8]
    cleared.result(WAIT_S)


def test_whoever_waits_for_masks_is_healthy() -> None:
    now = [0.0]
    worker = serve(stall_limit_s=5.0, clock=lambda: now[0])
    try:
        step = worker.step(first())
        now[0] = 100.0
        deadline = time.monotonic() + WAIT_S
        while not healthy(worker) and time.monotonic() < deadline:
            pass
        worker.check_health()
        worker.constrain(only(0, 9))
        assert ids(step) == [9]
    finally:
        worker.stop(WAIT_S)


def healthy(worker: EngineWorker) -> bool:
    try:
        worker.check_health()
    except EngineFailed:
        return False
    return True


def test_stopping_ends_the_wait() -> None:
    worker = serve()
    step = worker.step(first())
    assert worker.stop(WAIT_S)
    with pytest.raises(EngineFailed, match="stopping"):
        step.result(WAIT_S)


def write(form: MaskForm | None, *content: int, slot: int = 1) -> StepMasks:
    kind = np.uint8 if form is MaskForm.BITS else np.int64
    return StepMasks(0, [MaskWrite(slot, form, np.array(content, dtype=kind))], [0], [1])


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (StepMasks(0, (), [0], [MANY]), f"`slots` names mask slot {MANY}; there are {MANY}"),
        (StepMasks(0, (), [0], []), "`slots` must hold one slot for each of `rows`: 0 for 1"),
        (StepMasks(0, [mask_write(1, [1], MaskForm.ONLY)] * 2, [0], [1]), "`writes` names a mask slot twice"),
        (write(MaskForm.ONLY, 1, slot=0), "slot 0 allows everything"),
        (write(MaskForm.ONLY, 1, slot=MANY), f"slots 1 to {MANY - 1} may be written"),
        (write(MaskForm.BITS, *[255] * 7), "`bits` of mask slot 1 must be 8 bytes, a bit for each of 64 ids, not 7"),
        (write(MaskForm.ONLY, 3, 64), "`only` of mask slot 1 must name token ids below the vocabulary size 64"),
        (write(MaskForm.EXCEPT, 64), "`except` of mask slot 1 must name token ids below"),
        (write(None), "mask slot 1 must have `bits`, `only` or `except`"),
    ],
)
def test_wrong_masks_are_refused_and_fail_their_plan(worker: EngineWorker, masks: StepMasks, message: str) -> None:
    step = worker.step(first())
    for call in (lambda: worker.constrain(masks), lambda: step.result(WAIT_S)):
        with pytest.raises(InvalidRequest, match=message):
            call()
    with pytest.raises(PlanRefused):
        worker.step(decode(1, constrained=False)).result(WAIT_S)


def test_masks_of_other_rows_fail_their_plan(worker: EngineWorker) -> None:
    worker.constrain(StepMasks(0, (), [1], [0]))
    with pytest.raises(InvalidRequest, match="plan 0: row 0 is in `constrained` but has no mask"):
        worker.step(first()).result(WAIT_S)


def test_masks_for_a_plan_without_constrained_rows_fail_it(worker: EngineWorker) -> None:
    worker.constrain(only(0, 7))
    with pytest.raises(InvalidRequest, match="plan 0, which has no `constrained` rows"):
        worker.step(first(constrained=False)).result(WAIT_S)


@pytest.mark.parametrize("number", [0, 6])
def test_masks_out_of_turn_harm_no_plan(worker: EngineWorker, number: int) -> None:
    worker.constrain(only(1, 3))
    assert len(ids(worker.step(first(constrained=False)))) == 1
    with pytest.raises(InvalidRequest, match=f"`number` {number} is out of turn"):
        worker.constrain(only(number, 3))
    with pytest.raises(InvalidRequest, match="`number` 1 is out of turn: masks come once"):
        worker.constrain(only(1, 4))
    assert ids(worker.step(decode(1))) == [3]


def test_masks_before_warmup() -> None:
    worker = EngineWorker(lambda: make_engine(limits=None))
    worker.start()
    worker.ready.result(WAIT_S)
    with pytest.raises(NotReady, match="Warmup"):
        worker.constrain(only(0, 1))
    assert worker.stop(WAIT_S)

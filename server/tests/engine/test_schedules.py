"""Random arrivals, ends, pauses and cancellations, driven as the router drives: what survives gets what it gets alone.

Rows and slots of a request go to the next one with the plan that drops it, while the plan before may still name them.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest
from support.engine_driver import WAIT_S, directly, make_engine, stream, through
from support.router import Router, Send, Stream

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.requests import MaskSource, ServingLimits, StepPlan, StepReply, WarmupLimits
from text_generation_server.engine.worker import EngineWorker

EOS = (3, 17, 40)
NEW_TOKENS = 7
LIMITS = WarmupLimits(max_batch_prefill_tokens=64, max_batch_size=6, max_batch_total_tokens=120)
SERVING = ServingLimits(120, 63, 64, 6)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(limits=LIMITS)


@pytest.fixture(scope="module")
def worker() -> Iterator[EngineWorker]:
    worker = EngineWorker(lambda: make_engine(limits=None))
    worker.start()
    worker.ready.result(WAIT_S)
    worker.warmup(LIMITS).result(WAIT_S)
    yield worker
    worker.stop(WAIT_S)


def a_third(tokens: Sequence[int]) -> list[int]:
    """A grammar: what may come next follows from all that came before."""
    return [token for token in range(64) if (token + sum(tokens)) % 3 == 0]


def some_requests(chance: random.Random, count: int) -> list[Stream]:
    made = []
    for number in range(count):
        prompt = [chance.randrange(64) for _ in range(chance.randint(1, 9))]
        sampling = {"do_sample": True, "seed": number, "temperature": 1.5} if number % 2 else {}
        allowed = a_third if number % 3 == 0 else None
        made.append(stream(number, prompt, NEW_TOKENS, allowed=allowed, **sampling))
    return made


def run(send: Send, seed: int, depth: int) -> list[Stream]:
    chance = random.Random(seed)
    router = Router(send, SERVING, chunk=chance.randint(1, 9), depth=depth, pause=0.1, eos=EOS, budget=20, seed=seed)
    streams = some_requests(chance, 24)
    for each in streams:
        router.start(each)
        for _ in range(chance.randrange(4)):
            router.step()
        if chance.random() < 0.2:
            router.cancel(chance.choice(streams))
    router.run()
    assert sorted(router.free_rows) == list(range(6))
    assert sorted(router.free_slots) == list(range(120))
    return streams


def check(engine: Engine, streams: list[Stream]) -> None:
    assert not any(each.failure for each in streams)
    finished = [each for each in streams if each.tokens and (len(each.tokens) == NEW_TOKENS or each.tokens[-1] in EOS)]
    assert len(finished) > 8
    for each in streams:
        engine.clear_cache(None)
        alone = stream(1, each.prompt, NEW_TOKENS, allowed=each.allowed)
        alone.parameters = each.parameters
        Router(directly(engine), SERVING, eos=EOS).run(alone)
        assert each.tokens == alone.tokens[: len(each.tokens)]
        if each.allowed:
            assert all(token in a_third(each.tokens[:n]) for n, token in enumerate(each.tokens))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_what_survives_gets_what_it_gets_alone(engine: Engine, seed: int, depth: int) -> None:
    engine.clear_cache(None)
    check(engine, run(directly(engine), seed, depth))


@pytest.mark.parametrize("seed", range(2))
def test_the_same_through_the_threads_of_the_worker(engine: Engine, worker: EngineWorker, seed: int) -> None:
    worker.clear_cache(None).result(WAIT_S)
    check(engine, run(through(worker), seed, depth=2))


def reversing(worker: EngineWorker) -> Send:
    """Every second plan arrives after the one that follows it, and masks may come before their plan."""
    held: list[tuple[StepPlan, Future[Future[StepReply]]]] = []

    def submit_held() -> None:
        while held:
            plan, place = held.pop()
            place.set_result(worker.step(plan))

    def send(plan: StepPlan, masks: MaskSource) -> Callable[[], StepReply]:
        place: Future[Future[StepReply]] = Future()
        held.append((plan, place))
        if len(held) == 2:
            submit_held()
        if plan.constrained:
            worker.constrain(masks(plan.number))

        def wait() -> StepReply:
            submit_held()
            return place.result(WAIT_S).result(WAIT_S)

        return wait

    return send


def test_plans_that_arrive_in_the_other_order_are_executed_in_theirs(engine: Engine, worker: EngineWorker) -> None:
    worker.clear_cache(None).result(WAIT_S)
    check(engine, run(reversing(worker), seed=1, depth=2))

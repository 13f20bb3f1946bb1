"""Random arrivals, ends and cancellations, driven as the router drives: what survives gets what it gets alone.

Slots and rows of a request go to the next one as soon as the reply that ends it is there, while the step that runs
ahead may still name them.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator

import pytest
from support.engine_driver import Driver, Slots, make_engine, make_request

from text_generation_server.engine.options import RunAhead
from text_generation_server.engine.requests import (
    CachedBatch,
    Copy,
    Grant,
    NextTokenChooserParameters,
    Request,
    SlotRange,
    WarmupLimits,
)

EOS = (3, 17, 40)
NEW_TOKENS = 7
LIMITS = WarmupLimits(max_batch_prefill_tokens=64, max_batch_size=6, max_batch_total_tokens=120)


class Router:
    """Arrivals by chance; grants one slot a step, two ahead of need; takes slots back when a request has ended."""

    def __init__(self, seed: int, run_ahead: RunAhead) -> None:
        self.random = random.Random(seed)
        self.engine = make_engine(limits=LIMITS, eos_token_ids=EOS, run_ahead=run_ahead)
        self.driver = Driver(self.engine)
        self.slots = Slots(range(120))
        self.held: dict[int, list[SlotRange]] = {}
        self.cached: list[CachedBatch] = []
        self.requests: dict[int, Request] = {}
        self.cancelled: set[int] = set()
        self.next_id = 0

    def new_request(self) -> Request:
        prompt = [self.random.randrange(64) for _ in range(self.random.randint(1, 6))]
        lead = self._id()
        sampling = NextTokenChooserParameters(do_sample=True, seed=lead, temperature=1.5)
        slots = self._take(lead, len(prompt) + 1)
        copies = []
        if lead % 2 and self.random.random() < 0.3:
            # The prompt's slots stay in use until the whole group has ended: here they are never given back.
            self.held.pop(lead)
            copy = self._id()
            copies = [Copy(copy, lead + 1000, self._take(copy, 1))]
        made = dataclasses.replace(
            make_request(lead, prompt, slots, max_new_tokens=NEW_TOKENS),
            parameters=sampling if lead % 2 else NextTokenChooserParameters(),
            copies=tuple(copies),
        )
        for request in alone(made):
            self.requests[request.id] = request
        return made

    def prefill(self) -> None:
        count = min(self.random.randint(1, 2), self.engine.num_free_rows // 2)
        if count and len(self.slots.free) > 40:
            batch = self.driver.prefill(self._id(), *(self.new_request() for _ in range(count)))
            self.cached += [batch] if batch else []
            self._settle()

    def decode(self) -> None:
        batches, dropped = [], []
        for batch in self.cached:
            kept = tuple(i for i in batch.request_ids if self.random.random() > 0.08)
            dropped += [i for i in batch.request_ids if i not in kept]
            batches.append(CachedBatch(batch.id, kept))
        grants = [Grant(i, self._take(i, 1)) for batch in batches for i in batch.request_ids]
        if batches:
            joined = self.driver.decode(*batches, grants=grants)
            self.cached = [joined] if joined else []
        self.cancelled.update(dropped)
        self._settle()

    def _id(self) -> int:
        self.next_id += 1
        return self.next_id

    def _take(self, request_id: int, count: int) -> tuple[SlotRange, ...]:
        taken = self.slots.take(count)
        self.held.setdefault(request_id, []).extend(taken)
        return taken

    def _settle(self) -> None:
        """Slots of who is no longer cached are free at once."""
        running = {i for batch in self.cached for i in batch.request_ids}
        for request_id in [i for i in self.held if i not in running]:
            self.slots.free += [s.start for s in self.held.pop(request_id)]


def alone(request: Request) -> Iterator[Request]:
    """A request and its copies as requests of their own."""
    yield dataclasses.replace(request, copies=())
    for copy in request.copies:
        parameters = dataclasses.replace(request.parameters, seed=copy.seed)
        yield dataclasses.replace(request, id=copy.id, parameters=parameters, copies=())


def expected(request: Request) -> list[int]:
    driver = Driver(make_engine(limits=LIMITS, eos_token_ids=EOS))
    slots = (SlotRange(0, len(request.input_ids) + NEW_TOKENS),)
    driver.run(driver.prefill(1, dataclasses.replace(request, id=1, slots=slots)))
    return driver.transcripts[1].tokens


@pytest.mark.parametrize("run_ahead", RunAhead)
@pytest.mark.parametrize("seed", range(6))
def test_what_survives_gets_what_it_gets_alone(seed: int, run_ahead: RunAhead) -> None:
    router = Router(seed, run_ahead)
    actions: list[Callable[[], None]] = [router.prefill, router.decode, router.decode, router.decode]
    for _ in range(60):
        router.random.choice(actions)()
    for request_id, request in router.requests.items():
        transcript = router.driver.transcripts.get(request_id)
        tokens = transcript.tokens if transcript else []
        want = expected(request)
        if transcript is not None and transcript.finish is not None:
            assert tokens == want
        else:
            assert tokens == want[: len(tokens)]
    assert not router.driver.failures
    assert len(router.requests) > 5
    assert router.cancelled

"""Drives an engine the way the router does: hands out slots, grants ahead of need, collects tokens."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from support.fake_model import FakeModel, SingleGroup
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions, RunAhead
from text_generation_server.engine.requests import (
    Batch,
    CachedBatch,
    Finish,
    Generation,
    Grant,
    NextTokenChooserParameters,
    Request,
    RequestFailure,
    SlotRange,
    StepResult,
    StoppingCriteriaParameters,
    Tokens,
    WarmupLimits,
)

POOL = 512
LIMITS = WarmupLimits(max_batch_prefill_tokens=256, max_batch_size=8, max_batch_total_tokens=POOL)


def make_engine(
    model: FakeModel | None = None,
    limits: WarmupLimits | None = LIMITS,
    rank: int = 0,
    world_size: int = 1,
    eos_token_ids: Iterable[int] = (),
    run_ahead: RunAhead = RunAhead.NEVER,
) -> Engine:
    """An engine over the fake model, warmed up unless `limits` is None."""
    engine = Engine(
        model or FakeModel(),  # type: ignore[arg-type]
        SingleGroup(rank, world_size),  # type: ignore[arg-type]
        eos_token_ids=tuple(eos_token_ids),
        attention_impl="torch",
        watermark=WatermarkConfig(),
        options=EngineOptions(run_ahead=run_ahead),
    )
    if limits is not None:
        engine.warmup(limits)
    return engine


def make_request(
    request_id: int,
    input_ids: Iterable[int] = (1, 2, 3),
    slots: Iterable[SlotRange] | None = None,
    max_new_tokens: int = 8,
    ignore_eos_token: bool = False,
    prefill_logprobs: bool = False,
    top_n_tokens: int = 0,
    **parameters: object,
) -> Request:
    """A request; `parameters` are those of the token chooser. By default its slots start at 32 * id."""
    ids = tuple(input_ids)
    return Request(
        id=request_id,
        input_ids=ids,
        parameters=NextTokenChooserParameters(**parameters),  # type: ignore[arg-type]
        stopping_parameters=StoppingCriteriaParameters(max_new_tokens, ignore_eos_token),
        slots=tuple(slots) if slots is not None else (SlotRange(32 * request_id, len(ids) + max_new_tokens),),
        prefill_logprobs=prefill_logprobs,
        top_n_tokens=top_n_tokens,
    )


class Slots:
    """Hands out single slots in a scattered order, so that no test passes by contiguity alone."""

    def __init__(self, pool: Sequence[int] = range(POOL)) -> None:
        self.free = random.Random(7).sample(pool, len(pool))

    def take(self, count: int) -> tuple[SlotRange, ...]:
        return tuple(SlotRange(self.free.pop(), 1) for _ in range(count))


@dataclass
class Transcript:
    """What one request has said so far."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    prompt: Tokens | None = None

    def add(self, generation: Generation) -> None:
        self.tokens += generation.tokens.ids
        self.logprobs += generation.tokens.logprobs
        self.finish = generation.finish
        self.prompt = self.prompt or generation.prefill_tokens


class Driver:
    """Runs requests on one engine; `transcripts` and `failures` by request id."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.transcripts: dict[int, Transcript] = {}
        self.failures: dict[int, RequestFailure] = {}

    def prefill(self, batch_id: int, *requests: Request) -> CachedBatch | None:
        for request in requests:
            for request_id in (request.id, *(copy.id for copy in request.copies)):
                self.transcripts[request_id] = Transcript()
        result = self.engine.prefill(Batch(batch_id, requests))
        self.engine.between_calls()
        return self._record(result)

    def decode(self, *batches: CachedBatch, grants: Iterable[Grant] = ()) -> CachedBatch | None:
        result = self.engine.decode(list(batches), list(grants))
        self.engine.between_calls()
        return self._record(result)

    def run(self, batch: CachedBatch | None) -> None:
        """Decodes until nobody is left."""
        while batch is not None:
            batch = self.decode(batch)

    def _record(self, result: StepResult) -> CachedBatch | None:
        for generation in result.generations:
            self.transcripts[generation.request_id].add(generation)
        self.failures.update({failure.request_id: failure for failure in result.failures})
        return result.batch

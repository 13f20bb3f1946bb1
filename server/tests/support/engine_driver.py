"""Engines over the fake model, and short ways to make what plans hold."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from support.fake_model import FakeModel, SingleGroup
from support.router import Allowed, Send, Stream
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.adapter_requests import AdapterCopy, AdapterSource
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.memory import Memory
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import (
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepPlan,
    WarmupLimits,
)
from text_generation_server.engine.worker import EngineWorker
from text_generation_server.models import CausalLM

POOL = 512
LIMITS = WarmupLimits(max_batch_prefill_tokens=256, max_batch_size=8, max_batch_total_tokens=POOL)
SERVING = ServingLimits(POOL, 63, 64, 8)
WAIT_S = 30.0


def make_engine(
    model: CausalLM | FakeModel | None = None,
    limits: WarmupLimits | None = LIMITS,
    rank: int = 0,
    world_size: int = 1,
    eos_token_ids: Iterable[int] = (),
    memory: Memory | None = None,
    group: TensorParallelGroup | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine over a model, by default the fake one, warmed up unless `limits` is None."""
    engine = Engine(
        model or FakeModel(),  # type: ignore[arg-type]
        group or SingleGroup(rank, world_size),  # type: ignore[arg-type]
        eos_token_ids=tuple(eos_token_ids),
        attention_impl="torch",
        watermark=WatermarkConfig(),
        options=options or EngineOptions(),
        memory=memory,
    )
    if limits is not None:
        engine.warmup(limits)
    return engine


def engine_with(
    model: CausalLM,
    limits: WarmupLimits,
    adapters: Sequence[Path],
    pages: int | None = None,
    later: bool = False,
    **options: Any,
) -> Engine:
    """An engine with these adapters in host memory before Warmup, and pages for them, or so many."""
    engine = make_engine(model, None, **options)
    loaded = [engine.load_adapter(AdapterSource(each.name, str(each))) for each in adapters]
    pages = sum(each.pages for each in loaded) if pages is None else pages
    engine.warmup(replace(limits, adapter_pages=pages, adapters_later=later))
    return engine


def copy_adapters(engine: Engine, adapters: Sequence[Path]) -> None:
    """Drops everything, and copies adapters to numbers 1, 2, ... and pages next to each other."""
    engine.clear_cache(None)
    copies: list[AdapterCopy] = []
    page = 0
    for number, each in enumerate(adapters, 1):
        loaded = engine.load_adapter(AdapterSource(each.name, str(each)))
        copies.append(AdapterCopy(number, loaded.generation, page))
        page += loaded.pages
    reply = engine.step(StepPlan(0, adapter_copies=copies)).result()
    assert list(reply.adapters_ready) == list(range(1, len(adapters) + 1))


def directly(engine: Engine) -> Send:
    """Steps of an engine in this thread: what is launched may be read later."""
    return lambda plan, masks: engine.step(plan, masks).result


def through(worker: EngineWorker) -> Send:
    """Steps of an engine on the threads of a worker."""

    def send(plan, masks):  # type: ignore[no-untyped-def]
        future = worker.step(plan)
        if plan.constrained:
            worker.constrain(masks(plan.number))
        return lambda: future.result(WAIT_S)

    return send


def make_request(
    request_id: int,
    input_ids: Iterable[int] = (1, 2, 3),
    slots: Sequence[SlotRange] | None = None,
    row: int | None = None,
    num_generated: int = 0,
    cached_length: int = 0,
    top_n_tokens: int = 0,
    prefill_logprobs: bool = False,
    **parameters: object,
) -> Request:
    """A request; `parameters` are those of the token chooser. By default its row is its id, and it has 24 slots."""
    return Request(
        request_id,
        request_id if row is None else row,
        np.array(tuple(input_ids), dtype=np.int64),
        NextTokenChooserParameters(**parameters),  # type: ignore[arg-type]
        tuple(slots) if slots is not None else (SlotRange(24 * request_id, 24),),
        num_generated,
        cached_length,
        top_n_tokens,
        prefill_logprobs,
    )


def stream(
    request_id: int,
    prompt: Iterable[int] = (1, 2, 3),
    max_new_tokens: int = 8,
    top_n_tokens: int = 0,
    prefill_logprobs: bool = False,
    allowed: Allowed | None = None,
    **parameters: object,
) -> Stream:
    """The same for the router of the tests."""
    chooser = NextTokenChooserParameters(**parameters)  # type: ignore[arg-type]
    return Stream(request_id, list(prompt), max_new_tokens, chooser, top_n_tokens, prefill_logprobs, allowed)

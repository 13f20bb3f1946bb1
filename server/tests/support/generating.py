"""Greedy generations of an engine that was not timed, through a router that cuts, joins and pauses."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from support.engine_driver import directly, stream
from support.fake_model import SingleGroup
from support.families import NEW_TOKENS, PROMPTS
from support.loading import load
from support.replayed import capture
from support.router import Router, Stream
from support.thread_ranks import ThreadGroup, together
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.engine import warmup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, StepCost, WarmupLimits
from text_generation_server.models import CausalLM

LIMITS = WarmupLimits(max_batch_prefill_tokens=32, max_batch_size=8, max_batch_total_tokens=256, max_total_tokens=32)
SERVING = ServingLimits(256, 31, 32, 8)


def warm_engine(model: CausalLM, monkeypatch: pytest.MonkeyPatch, **options: bool) -> Engine:
    """An engine that did not time its steps."""
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())
    engine = Engine(model, SingleGroup(), (), "torch", WatermarkConfig(), EngineOptions(**options))  # type: ignore[arg-type]
    engine.warmup(LIMITS)
    return engine


def warm_ranks(folder: Path, groups: Sequence[ThreadGroup], graphs: GraphSizes | None = None) -> list[Engine]:
    """The engines of all ranks, warmed up together, with graphs of these sizes."""

    def warm(group: ThreadGroup) -> Engine:
        engine = Engine(load(folder, group=group), group, (), "torch", WatermarkConfig(), EngineOptions())
        engine.warmup(LIMITS)
        if graphs is not None:
            capture(engine, graphs)
        return engine

    return together([partial(warm, group) for group in groups])


def generations(engine: Engine, *indices: int, chunk: int, pause: float) -> list[Stream]:
    """Those of some of the prompts, greedy."""
    engine.clear_cache(None)
    asked = [stream(index, PROMPTS[index], NEW_TOKENS, prefill_logprobs=True) for index in indices]
    recurrent = engine.info.recurrent
    Router(directly(engine), SERVING, chunk=chunk, depth=2, pause=pause, recurrent=recurrent).run(*asked)
    return asked

"""Requests over keys and values of 8 and 4 bits get what they get alone, in chunks, batches, pauses, from prefixes."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from support.engine_driver import directly, stream
from support.fake_model import SingleGroup
from support.loading import load
from support.router import Router, Stream

from text_generation_server.config.kv_cache import QuantisedKvCache
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits

LIMITS = WarmupLimits(max_batch_prefill_tokens=128, max_batch_size=16, max_batch_total_tokens=1024)
SERVING = ServingLimits(1024, 128, 256, 16)
PROMPTS = [[(7 * n + 3 * i) % 380 + 4 for i in range(n)] for n in (1, 3, 8, 34, 90)]
NEW_TOKENS = 10


@pytest.fixture(scope="module", params=get_args(QuantisedKvCache))
def engine(request: pytest.FixtureRequest, llama_folder: Path) -> Engine:
    model = load(llama_folder, torch.float32, kv_cache=request.param)
    options = EngineOptions(deterministic=True)
    engine = Engine(model, SingleGroup(), (2, 3), "torch", WatermarkConfig(), options, request.param)  # type: ignore[arg-type]
    engine.warmup(LIMITS)
    assert engine.info.kv_cache_dtype == request.param
    return engine


def asked() -> list[Stream]:
    return [stream(i, prompt, NEW_TOKENS, prefill_logprobs=True) for i, prompt in enumerate(PROMPTS)]


def router(engine: Engine, **options: Any) -> Router:
    engine.clear_cache(None)
    return Router(directly(engine), SERVING, eos=(), **options)


def results(streams: list[Stream]) -> list[tuple[list[int], list[float]]]:
    return [(each.tokens, each.logprobs) for each in streams]


def test_results_do_not_depend_on_chunks_batch_pauses_or_prefixes(engine: Engine) -> None:
    alone = asked()
    for each in alone:
        router(engine, chunk=128).run(each)
    for chunk in (1, 7, 64):
        together = asked()
        router(engine, chunk=chunk, depth=2, budget=90).run(*together)
        assert results(together) == results(alone)
        assert [each.prompt_logprobs for each in together] == [each.prompt_logprobs for each in alone]
    paused = asked()
    router(engine, chunk=7, depth=2, pause=0.1).run(*paused)
    assert sum(each.pauses for each in paused) > 2
    assert results(paused) == results(alone)
    driver = router(engine, chunk=4)
    first, second = (stream(i, PROMPTS[3], NEW_TOKENS) for i in (1, 2))
    driver.start(first)
    while not first.tokens:
        driver.step()
    driver.start(second, prefix_of=first, cached=21)
    driver.run()
    assert results([first, second]) == [results(alone)[3]] * 2

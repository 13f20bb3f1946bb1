"""What graphs do to steps, on a CPU: each replay computes what was captured once more, padded as for a device."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_driver import directly, stream
from support.fake_model import SingleGroup
from support.loading import load
from support.replayed import capture, replays
from support.router import Router, Stream

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.graphs import GraphSizes, chunk_sizes, decode_sizes, forward_sizes
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits

LIMITS = WarmupLimits(max_batch_prefill_tokens=128, max_batch_size=20, max_batch_total_tokens=2048)
SERVING = ServingLimits(2048, 128, 256, 20)
DECODES, FORWARDS, TOKENS = [1, 4, 16], [8, 16], [16, 48, 80]


def build(folder: Path, graphs: bool, **options: Any) -> Engine:
    """`triton` orders tokens for attention as it is on a device."""
    config = ModelConfig.from_folder(folder)
    engine = Engine(
        load(folder),
        SingleGroup(),  # type: ignore[arg-type]
        config.eos_token_ids,
        "triton",
        WatermarkConfig(),
        EngineOptions(**options),
    )
    engine.warmup(LIMITS)
    runner = engine._runner
    assert runner is not None
    if graphs:
        capture(engine, GraphSizes(DECODES, FORWARDS, TOKENS))
        assert runner.graph_tokens == TOKENS
    return engine


def streams() -> list[Stream]:
    chance = random.Random(3)
    prompts = [[chance.randrange(4, 384) for _ in range(chance.randint(1, 40))] for _ in range(18)]
    return [
        stream(i, prompt, 8, prefill_logprobs=i == 4, allowed=a_third if i % 5 == 1 else None, **SAMPLING[i % 3])
        for i, prompt in enumerate(prompts)
    ]


def a_third(tokens: Sequence[int]) -> list[int]:
    return [token for token in range(384) if (token + sum(tokens)) % 3 == 0]


SAMPLING: list[dict[str, Any]] = [{}, {"do_sample": True, "seed": 3}, {"repetition_penalty": 1.2}]


def run(engine: Engine, **options: Any) -> list[Stream]:
    engine.clear_cache(None)
    asked = streams()
    Router(directly(engine), SERVING, vocab_size=384, **options).run(*asked)
    assert not any(each.failure for each in asked)
    return asked


@pytest.fixture(scope="module")
def expected(llama_folder: Path) -> list[list[int]]:
    return [each.tokens for each in run(build(llama_folder, graphs=False), chunk=128)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_padded_steps_give_the_same_tokens(llama_folder: Path, expected: list[list[int]], deterministic: bool) -> None:
    engine = build(llama_folder, graphs=True, deterministic=deterministic)
    runner = engine._runner
    assert runner is not None
    for chunk, budget in ((3, 40), (40, 70), (128, 128)):
        got = run(engine, chunk=chunk, budget=budget, depth=2, pause=0.03)
        assert [each.tokens for each in got] == expected
    assert replays(runner._captured.base) == (set(DECODES), set(FORWARDS), set(TOKENS))


def test_steps_as_on_a_device_are_deterministic_to_the_bit_without_padding_too(llama_folder: Path) -> None:
    plain = run(build(llama_folder, graphs=False, deterministic=True), chunk=128, pause=0.05)
    padded = run(build(llama_folder, graphs=True, deterministic=True), chunk=9, budget=50)
    # Attention of torch rounds by the length of a chunk; tokens are what must agree here.
    assert [each.tokens for each in padded] == [each.tokens for each in plain]


def test_sizes_end_at_the_largest_step_that_there_is() -> None:
    assert decode_sizes(6) == [1, 2, 4, 6]
    assert decode_sizes(4096)[-1] == 512
    assert forward_sizes(decode_sizes(300)) == [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 300]
    assert forward_sizes([]) == []
    assert chunk_sizes(20) == [16, 20]
    assert chunk_sizes(8192 + 256)[-1] == 2048
    # Those of Llama 3.1 of 8B, and of 70B on two cards.
    assert chunk_sizes(8192 + 256, 6_979_321_856)[-1] == 2048
    assert chunk_sizes(8192 + 256, 34_225_520_640)[-1] == 640
    # A quarter of 8B: the host is no faster than the device up to 4,096 tokens.
    assert chunk_sizes(8192 + 256, 6_979_321_856 // 4)[-1] == 4096
    assert chunk_sizes(2048 + 256, 6_979_321_856 // 4)[-1] == 2304
    assert chunk_sizes(100) == [16, 32, 48, 64, 96, 100]


def test_a_step_has_padding_of_nobody(llama_folder: Path) -> None:
    """Nothing but the slot of the padding is written beside the slots of the requests."""
    engine = build(llama_folder, graphs=True)
    runner = engine._runner
    assert runner is not None
    pool = runner._steps.inputs._pool
    with torch.inference_mode():
        for cache in (tensor for each in pool.caches for tensor in (each.k, each.v)):
            cache.fill_(torch.nan)
    driver = Router(directly(engine), SERVING, chunk=5, depth=2)
    asked = [stream(1, [7, 8, 9, 10, 11, 12], 4), stream(2, [42], 4)]
    free = set(driver.free_slots)
    driver.start(*asked)
    used: set[int] = set()
    while driver.running or driver.waiting:
        driver.step()
        used |= free - set(driver.free_slots)
    driver.run()
    untouched = sorted(free - used)
    assert len(untouched) > 1000
    for cache in (tensor for each in pool.caches for tensor in (each.k, each.v)):
        assert cache[untouched].isnan().all()
        assert not cache[sorted(used)].isnan().any()
    assert all(len(each.tokens) == 4 for each in asked)

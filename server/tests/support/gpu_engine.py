"""Engines on a GPU, and schedules by chance that requests go through there."""

import gc
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from text_generation_server.config.asked_drafter import DrafterKind
from text_generation_server.config.drafter import FoundDrafter, read_drafter_config
from text_generation_server.config.implementation import ModelImpl, read_model_config
from text_generation_server.config.kv_cache import QuantisedKvCache
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.adapter_requests import AdapterSource
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.models.encoder import Encoder
from text_generation_server.models.registry import load_model

from .engine_driver import copy_adapters, directly, stream
from .fake_model import SingleGroup
from .router import Router, Stream

NEW_TOKENS = 16
LIMITS = WarmupLimits(
    max_batch_prefill_tokens=200, max_batch_size=16, max_batch_total_tokens=4096, prefill_chunking=True
)
OF_WINDOWS = WarmupLimits(
    max_batch_prefill_tokens=2048, max_batch_size=16, max_batch_total_tokens=4096, prefill_chunking=True
)
"""For prompts that are whole in one step, beside windows."""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5, "temperature": 0.7},
    {"do_sample": True, "seed": 6, "top_p": 0.9, "top_k": 50},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
]
"""Of a request each, in turns."""
SERVING = ServingLimits(4096, 255, 256, 16)
EOS = (2, 3)
MEMORY_FRACTION = float(os.environ.get("GPU_TEST_MEMORY_FRACTION", "0.5"))
"""Of the device's memory, that of all processes on it: more, where several test at a time."""


def build(
    folder: Path,
    dtype: torch.dtype,
    limits: WarmupLimits = LIMITS,
    impl: ModelImpl = "auto",
    encoder: Encoder | None = None,
    merge_adapter: Path | None = None,
    adapters: Sequence[Path] = (),
    pages: int = 0,
    later: bool = False,
    drafter: Path | None = None,
    kind: DrafterKind | None = None,
    kv_cache: QuantisedKvCache | None = None,
    group: TensorParallelGroup | None = None,
    **options: Any,
) -> Engine:
    """Alone, or as a rank of `group`."""
    # An engine that was warmed up is frozen for the garbage collector: the ones before give their memory back only now.
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()
    device = torch.device("cuda", torch.cuda.current_device())
    config = read_model_config(folder, impl)
    with torch.inference_mode():
        found = None if drafter is None else FoundDrafter(drafter, read_drafter_config(drafter, config, kind))
        shared = group or TensorParallelGroup(0, 1, device)
        model = load_model(folder, config, shared, dtype, device, "auto", kv_cache, merge_adapter, found)
    if encoder is not None:
        model.encoder = encoder
    engine = Engine(
        model,
        group or SingleGroup(),  # type: ignore[arg-type]
        config.eos_token_ids,
        "triton",
        WatermarkConfig(),
        EngineOptions(memory_fraction=MEMORY_FRACTION, **options),
    )
    loaded = [engine.load_adapter(AdapterSource(each.name, str(each))) for each in adapters]
    pages = pages or sum(each.pages for each in loaded)
    engine.warmup(replace(limits, adapter_pages=pages, adapters_later=later))
    return engine


def router(engine: Engine, adapters: Sequence[Path] = (), **options: Any) -> Router:
    """Drops everything; `adapters` are copied to numbers 1, 2, ..."""
    copy_adapters(engine, adapters)
    usual = {"eos": EOS, "budget": 200, "recurrent": engine.info.recurrent}
    return Router(directly(engine), SERVING, **{**usual, **options})


def a_request(number: int, longest: int = 60, **more: Any) -> Stream:
    """Number `number` of many: what it asks for follows from that alone."""
    chance = random.Random(number)
    prompt = [chance.randrange(4, 384) for _ in range(chance.randint(1, longest))]
    choosers: list[dict[str, Any]] = [
        {},
        {"do_sample": True, "seed": number, "temperature": 0.8},
        {"do_sample": True, "seed": number, "top_p": 0.9, "top_k": 50},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
        {"watermark": True, "min_new_tokens": 5},
    ]
    return stream(number, prompt, NEW_TOKENS, 3 if number % 7 == 0 else 0, **choosers[number % 5], **more)


def with_adapters_in_turn(count: int, kinds: int) -> list[Stream]:
    """Requests of the base and of `kinds` - 1 adapters beside each other."""
    streams = [stream(i, [4 + (7 * i + n) % 90 for n in range(1 + (5 * i) % 50)], 12) for i in range(count)]
    for number, each in enumerate(streams):
        each.adapter = number % kinds
    return streams


def schedule(engine: Engine, seed: int, numbers: int, count: int, **options: Any) -> list[Stream]:
    """Some of the requests arrive by chance; some are cancelled, paused, or share a prefix with one that runs."""
    chance = random.Random(seed)
    chunk = chance.choice([1, 3, 16, 64, 200])
    driver = router(engine, chunk=chunk, depth=chance.choice([1, 2]), seed=seed, **options)
    streams: list[Stream] = []
    for number in chance.sample(range(numbers), count):
        each = a_request(number)
        streams.append(each)
        driver.start(each)
        for _ in range(chance.randrange(6)):
            driver.step()
        # Its row and its prompt are there, and who shares it may be asked for the same.
        shares = each.tokens and each.row is not None and len(each.prompt) > 1 and chance.random() < 0.3
        if shares and not driver.recurrent:
            twin = a_request(number)
            twin.id += numbers
            streams.append(twin)
            driver.start(twin, prefix_of=each, cached=chance.randrange(1, len(each.prompt)))
        if chance.random() < 0.1:
            driver.cancel(chance.choice(streams))
    driver.run()
    assert sorted(driver.free_rows) == list(range(16))
    assert all(reply.timings.kernel_compilations == 0 for reply in driver.replies)
    return streams


def alone(engine: Engine, numbers: int) -> list[list[int]]:
    return [router(engine, chunk=200).run(a_request(number))[0] for number in range(numbers)]


def check(streams: list[Stream], expected: list[list[int]], context: object) -> int:
    """Every request has what it has alone, up to where it was cancelled. Returns how many were whole."""
    whole = 0
    for each in streams:
        assert each.failure is None
        want = expected[each.id % len(expected)]
        assert each.tokens == want[: len(each.tokens)], (context, each.id)
        whole += each.tokens == want
    return whole

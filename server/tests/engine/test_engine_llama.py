"""The engine with a real tiny Llama; the oracle is transformers' `generate`."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_driver import directly, stream
from support.fake_model import SingleGroup
from support.router import Router, Stream
from transformers import LlamaForCausalLM

from text_generation_server.config.model import ModelConfig
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.models.registry import load_model

NEW_TOKENS = 24
LIMITS = WarmupLimits(max_batch_prefill_tokens=128, max_batch_size=16, max_batch_total_tokens=1024)
SERVING = ServingLimits(1024, 128, 256, 16)
EOS = (2, 3)


def build(folder: Path, options: EngineOptions) -> Engine:
    device = torch.device("cpu")
    config = ModelConfig.from_folder(folder)
    group = TensorParallelGroup(0, 1, device)
    model = load_model(folder, config, group, torch.float32, device, "auto")
    engine = Engine(model, SingleGroup(), config.eos_token_ids, "torch", WatermarkConfig(), options)  # type: ignore[arg-type]
    engine.warmup(LIMITS)
    return engine


@pytest.fixture(scope="module")
def engine(llama_folder: Path) -> Engine:
    return build(llama_folder, EngineOptions())


@pytest.fixture(scope="module")
def deterministic(llama_folder: Path) -> Engine:
    return build(llama_folder, EngineOptions(deterministic=True))


@pytest.fixture(scope="module")
def oracle(llama_folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(llama_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def expected(oracle: LlamaForCausalLM) -> list[list[int]]:
    """Greedy ids of each prompt."""
    return [greedy(oracle, prompt) for prompt in PROMPTS]


PROMPTS = [[random.Random(n).randrange(4, 384) for _ in range(n)] for n in (1, 2, 3, 5, 8, 13, 34, 90)]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5, "temperature": 0.9},
    {"do_sample": True, "seed": 2**64 - 3, "top_p": 0.9, "top_k": 40},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "penalize_output_only": True, "do_sample": True, "seed": 9},
    {"watermark": True},
    {"min_new_tokens": 30, "do_sample": True, "seed": 4, "temperature": 3.0},
]


def greedy(oracle: LlamaForCausalLM, prompt: list[int], **parameters: object) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            **parameters,
        )
    return output[0, len(prompt) :].tolist()


def router(engine: Engine, **options: Any) -> Router:
    engine.clear_cache(None)
    return Router(directly(engine), SERVING, **{"eos": EOS, **options})


def streams(**options: Any) -> list[Stream]:
    return [stream(i, prompt, NEW_TOKENS, **options) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("depth", [1, 2])
def test_greedy_ids_equal_transformers_in_any_chunks(
    engine: Engine, expected: list[list[int]], chunk: int, depth: int
) -> None:
    assert router(engine, chunk=chunk, depth=depth, budget=100).run(*streams()) == expected


def test_greedy_ids_equal_transformers_alone(engine: Engine, expected: list[list[int]]) -> None:
    for each, want in zip(streams(), expected, strict=True):
        assert router(engine).run(each) == [want]


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_join_leave_and_pause_do_not_change_the_others(
    engine: Engine, expected: list[list[int]], seed: int
) -> None:
    driver, chance = router(engine, chunk=5, depth=2, pause=0.08, seed=seed), random.Random(seed)
    running = streams()
    for each in running:
        driver.start(each)
        for _ in range(chance.randrange(4)):
            driver.step()
        if chance.random() < 0.2:
            driver.cancel(chance.choice(running))
    driver.run()
    assert sum(each.pauses for each in running) > 3
    for each, want in zip(running, expected, strict=True):
        assert each.tokens == want[: len(each.tokens)]
        assert each.ended or each.tokens == want


def test_any_cached_prefix_gives_the_same_ids(engine: Engine, expected: list[list[int]]) -> None:
    """Slots shared between rows, at every length of the prefix, while the first request goes on."""
    prompt, want = PROMPTS[5], expected[5]
    for length in range(1, len(prompt)):
        driver = router(engine, chunk=4)
        first, second = stream(1, prompt, NEW_TOKENS), stream(2, prompt, NEW_TOKENS)
        driver.start(first)
        while not first.tokens:
            driver.step()
        driver.start(second, prefix_of=first, cached=length)
        driver.run()
        assert (first.tokens, second.tokens) == (want, want)


def test_repetition_penalty_equals_transformers(engine: Engine, oracle: LlamaForCausalLM) -> None:
    want = [greedy(oracle, prompt, repetition_penalty=1.3) for prompt in PROMPTS]
    assert router(engine, chunk=9, pause=0.05).run(*streams(repetition_penalty=1.3)) == want


@pytest.mark.parametrize("parameters", SAMPLING, ids=str)
def test_a_request_continues_from_any_place_as_if_it_had_never_stopped(
    engine: Engine, parameters: dict[str, Any]
) -> None:
    """A shard is given a prompt with tokens generated elsewhere at its end."""
    prompt = PROMPTS[4]
    (whole,) = router(engine, eos=()).run(stream(1, prompt, 45, **parameters))
    for generated in (1, 2, 37, 44):
        resumed = stream(1, prompt, 45, **parameters)
        resumed.tokens += whole[:generated]
        assert router(engine, eos=(), chunk=20).run(resumed) == [whole]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logprobs_of_prompt_and_output_equal_transformers(engine: Engine, oracle: LlamaForCausalLM, chunk: int) -> None:
    prompt = PROMPTS[6]
    asked = stream(1, prompt, NEW_TOKENS, prefill_logprobs=True, top_n_tokens=3)
    others = streams()[2:5]
    for other in others:
        other.id += 100
    router(engine, chunk=chunk).run(asked, *others)
    ids = torch.tensor([[*prompt, *asked.tokens]])
    with torch.inference_mode():
        logprobs = oracle(ids).logits[0].log_softmax(-1)
    want = logprobs[torch.arange(len(ids[0]) - 1), ids[0, 1:]].tolist()
    assert asked.prompt_logprobs == pytest.approx(want[: len(prompt) - 1], abs=1e-4)
    assert asked.logprobs == pytest.approx(want[len(prompt) - 1 :], abs=1e-4)
    assert [scores.first for scores in asked.scores] == list(range(0, len(prompt) - 1, chunk))
    best = logprobs.topk(3)
    tops = [top for scores in asked.scores for top in scores.top_tokens] + asked.tops
    assert [list(top.ids) for top in tops] == best.indices[: len(tops)].tolist()
    assert [list(top.logprobs) for top in tops] == [pytest.approx(row, abs=1e-4) for row in best.values.tolist()][
        : len(tops)
    ]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_deterministic_results_do_not_depend_on_chunks_or_batch(deterministic: Engine, chunk: int) -> None:
    """To the bit: also where positions that were decoded once are computed again as a prompt."""

    def results(driver: Router, asked: list[Stream]) -> list[tuple[list[int], list[float], list[float]]]:
        driver.run(*asked)
        return [(each.tokens, each.logprobs, each.prompt_logprobs) for each in asked]

    def asked() -> list[Stream]:
        return [
            stream(i, prompt, NEW_TOKENS, prefill_logprobs=True, **SAMPLING[i % len(SAMPLING)])
            for i, prompt in enumerate(PROMPTS)
        ]

    alone = [results(router(deterministic, eos=(), chunk=128), [each])[0] for each in asked()]
    together = router(deterministic, eos=(), chunk=chunk, depth=2, budget=90)
    assert results(together, asked()) == alone
    paused = asked()
    again = router(deterministic, eos=(), chunk=chunk, depth=2, pause=0.1)
    got = results(again, paused)
    assert sum(each.pauses for each in paused) > 5
    assert [(tokens, logprobs) for tokens, logprobs, _ in got] == [(tokens, logprobs) for tokens, logprobs, _ in alone]

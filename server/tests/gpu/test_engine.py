"""The engine on a GPU: graphs, chunks, cached prefixes and pauses change nothing of what requests get; limits hold;
nothing compiles after warm-up.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_driver import directly, stream
from support.gpu_engine import LIMITS, NEW_TOKENS, a_request, alone, build, check, router, schedule
from support.router import Router, Stream

from text_generation_server.engine.requests import ServingLimits, WarmupLimits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_a_thousand_schedules_change_no_token(llama_folder: Path, graphs: tuple[int, ...] | None) -> None:
    engine = build(llama_folder, torch.bfloat16, deterministic=True, cuda_graphs=graphs)
    expected = alone(engine, 40)
    assert len({tuple(tokens) for tokens in expected}) > 35
    pauses = whole = total = 0
    for seed in range(900 if graphs is None else 100):
        streams = schedule(engine, seed, numbers=40, count=4, pause=0.03)
        whole += check(streams, expected, seed)
        total += len(streams)
        pauses += sum(each.pauses for each in streams)
    assert whole > 0.8 * total
    assert pauses > 50


@pytest.mark.parametrize("graphs", [None, (1, 2, 4, 8, 16), ()], ids=["default", "given", "none"])
def test_graphs_change_no_token_in_the_default_mode(llama_folder: Path, graphs: tuple[int, ...] | None) -> None:
    """In float32 nothing hangs on the last bits of this model."""
    expected = alone(build(llama_folder, torch.float32, cuda_graphs=()), 40)
    engine = build(llama_folder, torch.float32, cuda_graphs=graphs)
    for seed in range(6):
        assert check(schedule(engine, seed, numbers=40, count=20, pause=0.02), expected, seed) > 10


def test_deterministic_log_probabilities_are_the_same_to_the_bit(llama_folder: Path) -> None:
    """In any chunks and company, and for positions that were decoded and are computed again as a prompt."""
    engine = build(llama_folder, torch.bfloat16, deterministic=True)
    numbers = range(12)

    def results(streams: list[Stream], **options: Any) -> list[tuple[list[int], list[float]]]:
        router(engine, eos=(), **options).run(*streams)
        return [(each.tokens, each.logprobs + each.prompt_logprobs) for each in streams]

    def asked() -> list[Stream]:
        return [a_request(number, prefill_logprobs=True) for number in numbers]

    want = [results([each], chunk=200)[0] for each in asked()]
    for chunk in (1, 7, 64, 200):
        assert results(asked(), chunk=chunk, depth=2) == want
    for number in numbers:
        resumed = a_request(number)
        resumed.tokens += want[number][0][:9]
        router(engine, eos=(), chunk=13).run(resumed)
        assert (resumed.tokens, resumed.logprobs) == (want[number][0], want[number][1][9:NEW_TOKENS])


@pytest.mark.parametrize("rows", [1, 16, 40])
@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
def test_nothing_is_compiled_after_warm_up(
    llama_folder: Path, rows: int, graphs: tuple[int, ...] | None, deterministic: bool
) -> None:
    limits = WarmupLimits(max_batch_prefill_tokens=200, max_batch_size=rows, prefill_chunking=True)
    engine = build(llama_folder, torch.bfloat16, limits, cuda_graphs=graphs, deterministic=deterministic)
    serving = ServingLimits(4096, 255, 256, rows)
    for length in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 199, 200, 250):
        engine.clear_cache(None)
        driver = Router(directly(engine), serving, chunk=200, budget=200)
        scored = stream(0, [7] * length, 3, 5, prefill_logprobs=True)
        others = [stream(1 + i, [9] * min(length, 20), 3 + i % 3, **a_sampling(i)) for i in range(rows - 1)]
        driver.start(scored, *others)
        driver.run()
        assert scored.failure is None
        assert len(scored.prompt_logprobs) == length - 1
        assert max(reply.timings.kernel_compilations for reply in driver.replies) == 0


def a_third(tokens: Sequence[int]) -> list[int]:
    return [token for token in range(384) if (token + sum(tokens)) % 3 == 0]


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_constrained_rows_choose_what_they_choose_alone(llama_folder: Path, graphs: tuple[int, ...] | None) -> None:
    """Half of the rows choose under masks that follow from their last token, two plans deep."""
    engine = build(llama_folder, torch.bfloat16, deterministic=True, cuda_graphs=graphs)

    def asked() -> list[Stream]:
        return [a_request(number, allowed=a_third if number % 2 else None) for number in range(16)]

    def run(streams: list[Stream], **options: Any) -> list[list[int]]:
        driver = router(engine, vocab_size=384, **options)
        driver.run(*streams)
        assert not any(each.failure for each in streams)
        assert max(reply.timings.kernel_compilations for reply in driver.replies) == 0
        return [each.tokens for each in streams]

    want = [run([each], chunk=200)[0] for each in asked()]
    for number, tokens in enumerate(want):
        if number % 2:
            assert all(token in a_third(tokens[:n]) for n, token in enumerate(tokens))
    for chunk, depth in ((3, 2), (64, 1), (200, 2)):
        assert run(asked(), chunk=chunk, depth=depth, pause=0.03) == want


def a_sampling(number: int) -> dict[str, Any]:
    return [{}, {"do_sample": True, "top_p": 0.9}, {"repetition_penalty": 1.1}, {"do_sample": True, "top_k": 5}][
        number % 4
    ]


def test_the_longest_request_has_room(llama_folder: Path) -> None:
    engine = build(llama_folder, torch.bfloat16)
    full = stream(1, [5 + n % 300 for n in range(240)], 16)
    router(engine, eos=(), chunk=200).run(full)
    assert len(full.tokens) == 16


@pytest.mark.parametrize("deterministic", [False, True])
def test_two_thousand_rows_decode_without_graphs(llama_folder: Path, deterministic: bool) -> None:
    limits = WarmupLimits(max_batch_prefill_tokens=2048, max_batch_size=2048, max_batch_total_tokens=8192)
    engine = build(llama_folder, torch.bfloat16, limits, cuda_graphs=(), deterministic=deterministic)
    streams = [stream(i, [4 + i % 300], 3) for i in range(2048)]
    driver = Router(directly(engine), ServingLimits(8192, 255, 256, 2048), budget=2048)
    driver.run(*streams)
    assert all(len(each.tokens) == 3 for each in streams)


def test_the_times_of_steps_are_measured(llama_folder: Path) -> None:
    engine = build(llama_folder, torch.bfloat16)
    assert engine._runner is not None
    engine._runner = None
    result = engine.warmup(LIMITS)
    assert list(result.graph_tokens) == sorted(result.graph_tokens)
    assert result.graph_tokens[-1] == 216
    assert result.cost.tokens[-1] == 216
    assert 0 < result.cost.times_ms[0] <= result.cost.times_ms[-1] < 1000

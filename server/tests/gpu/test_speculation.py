"""Windows of drafted tokens on a GPU: they change no token, with CUDA graphs and without, and nothing compiles for them
after warm-up.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.families import made, write
from support.family_cases import CASES
from support.gpu_engine import build
from support.masked_windows import Guess, nothing
from support.masked_windows import run as run_masked
from support.windows import NEW_TOKENS, Reader, request, run, run_arriving

from text_generation_server.engine.requests import Hint, Request, WarmupLimits

pytestmark = pytest.mark.gpu

SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5, "temperature": 0.3},
    {"do_sample": True, "seed": 6, "top_p": 0.9, "top_k": 50},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
    {"watermark": True, "min_new_tokens": 5},
]


LIMITS = WarmupLimits(
    max_batch_prefill_tokens=4096, max_batch_size=16, max_batch_total_tokens=4096, prefill_chunking=True
)


def asked(count: int) -> list[Request]:
    """Texts that repeat what they began with, of many lengths."""
    chance = random.Random(count)
    requests = []
    for row in range(count):
        piece = [chance.randrange(4, 384) for _ in range(chance.randint(2, 20))]
        prompt = (piece * 60)[: chance.randint(3, 190)]
        requests.append(request(row, prompt, 40, room=256, **SETTINGS[row % len(SETTINGS)]))
    return requests


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_deterministic_windows_have_the_bits_of_single_tokens(
    llama_folder: Path, graphs: tuple[int, ...] | None, count: int
) -> None:
    plain = build(llama_folder, torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs)
    expected = run(plain, asked(count), 1)
    del plain
    engine = build(llama_folder, torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs, speculate=7)
    for width in (1, 2, 4, 8):
        found = run(engine, asked(count), width)
        assert (found.ids, found.logprobs) == (expected.ids, expected.logprobs), width
        assert found.compilations == 0
        # Of several rows, the slowest decides.
        assert count > 1 or width == 1 or found.steps < expected.steps


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_windows_change_no_token_in_the_default_mode(llama_folder: Path, graphs: tuple[int, ...] | None) -> None:
    """In float32 nothing hangs on the last bits of this model. Attention reads a context once for a whole window."""
    expected: Reader | None = None
    engine = build(llama_folder, torch.float32, LIMITS, cuda_graphs=graphs, speculate=3)
    for width in (1, 2, 4):
        found = run(engine, asked(16), width)
        expected = expected or found
        assert found.ids == expected.ids, width
        assert found.compilations == 0


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
@pytest.mark.parametrize(
    "name", ["qwen3.5", "mamba", "falcon h1", "kimi linear", "ling 2.5", "lfm2", "recurrent gemma"]
)
def test_windows_leave_no_trace_in_states(name: str, graphs: tuple[int, ...] | None, tmp_path: Path) -> None:
    """Hints of which every third token is wrong, to the bit, beside prompts and without."""
    case = CASES[name]
    case = replace(case, values={**case.values, "vocab_size": 384, "max_position_embeddings": 512})
    write(case, made(case), tmp_path / "model")
    requests = asked(9)
    plain = build(tmp_path / "model", torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs)
    expected = run(plain, requests, 1)
    del plain
    options: dict[str, Any] = {"deterministic": True, "cuda_graphs": graphs, "speculate": 7}
    engine = build(tmp_path / "model", torch.bfloat16, LIMITS, **options)

    def spoilt(row: int, ids: Sequence[int]) -> list[Hint]:
        at = len(requests[row].input_ids) + len(ids)
        later = [each + (place % 3 == 2) for place, each in enumerate(expected.ids[row][len(ids) :])]
        return [Hint(row, at, np.array(later, dtype=np.int64))]

    for widths in (2, 4, 8, (8, 1, 1, 2)):
        found = run(engine, requests, widths, hinter=spoilt)
        assert (found.ids, found.logprobs) == (expected.ids, expected.logprobs), widths
        assert found.compilations == 0
        assert found.steps < expected.steps
    arriving = run_arriving(engine, requests, 4, 64, hinter=spoilt)
    assert (arriving.ids, arriving.compilations) == (expected.ids, 0)


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_hints_change_no_bit_and_right_ones_are_all_accepted(
    llama_folder: Path, graphs: tuple[int, ...] | None
) -> None:
    plain = build(llama_folder, torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs)
    requests = asked(5)
    expected = run(plain, requests, 1)
    del plain
    engine = build(llama_folder, torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs, speculate=7)

    def right(row: int, ids: Sequence[int]) -> list[Hint]:
        at = len(requests[row].input_ids) + len(ids)
        return [Hint(row, at, np.array(expected.ids[row][len(ids) :], dtype=np.int64))]

    def wrong(row: int, ids: Sequence[int]) -> list[Hint]:
        at = len(requests[row].input_ids) + len(ids)
        later = [*expected.ids[row][len(ids) : len(ids) + 2], 5, 2**32 - 1, *[6] * 99]
        return [Hint(row, at - len(ids) % 3, np.array(later, dtype=np.int64))]

    for width in (1, 2, 4, 8):
        for hinter in (right, wrong):
            found = run(engine, requests, width, hinter=hinter)
            assert (found.ids, found.logprobs) == (expected.ids, expected.logprobs), (width, hinter)
            assert found.compilations == 0
        assert run(engine, requests, width, hinter=right).steps == 1 + -(-39 // width)


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_masks_of_windows_change_no_bit(llama_folder: Path, graphs: tuple[int, ...] | None) -> None:
    plain = build(llama_folder, torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs)
    expected = run_masked(plain, 1)
    del plain
    engine = build(llama_folder, torch.bfloat16, LIMITS, deterministic=True, cuda_graphs=graphs, speculate=7)

    def right(row: int, ids: Sequence[int]) -> Sequence[int]:
        return expected.ids[row][len(ids) :]

    guesses: list[Guess] = [right, nothing, lambda row, ids: [*right(row, ids)[:1], 1, 2, 3]]
    for width in (1, 2, 4, 8):
        for guess in guesses:
            found = run_masked(engine, width, guess)
            assert (found.ids, found.logprobs) == (expected.ids, expected.logprobs), width
            assert found.compilations == 0
        assert run_masked(engine, width, right).masked_steps == -(-(NEW_TOKENS - 1) // width)

"""Recurrent layers as they serve: 16-bit types, in graphs, beside chunks, on the device."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engine_driver import stream
from support.families import made, write
from support.gpu_engine import alone, build, check, router, schedule
from support.recurrent_cases import RECURRENT_CASES

pytestmark = pytest.mark.gpu
NUMBERS = 20


def written(name: str, folder: Path) -> Path:
    """The model of a case with the ids and the positions that the schedules have."""
    case = RECURRENT_CASES[name]
    case = replace(case, values={**case.values, "vocab_size": 384, "max_position_embeddings": 512})
    write(case, made(case), folder)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "qwen3 next",
        "kimi linear",
        "ling 2.5",
        "minimax text 01",
        "jamba",
        "nemotron h",
        "granite 4",
        "lfm2 moe",
        "recurrent gemma",
    ],
)
def test_schedules_change_no_token(name: str, tmp_path: Path) -> None:
    """In deterministic mode, to the bit: chunks beside decodes, rows that change their owner, pauses."""
    engine = build(written(name, tmp_path), torch.bfloat16, deterministic=True)
    expected = alone(engine, NUMBERS)
    assert len({tuple(tokens) for tokens in expected}) > 15
    for seed in range(20):
        check(schedule(engine, seed, NUMBERS, count=6, pause=0.03), expected, seed)


@pytest.mark.parametrize(
    "name", ["qwen3.5", "kimi linear", "ling 2.5", "mamba", "nemotron h letters", "nemotron 3", "bamba"]
)
def test_graphs_change_no_token_in_the_default_mode(name: str, tmp_path: Path) -> None:
    """In float32 nothing hangs on the last bits of these models."""
    engine = build(written(name, tmp_path), torch.float32)
    expected = alone(engine, NUMBERS)
    assert len({tuple(tokens) for tokens in expected}) > 15
    for seed in range(20):
        check(schedule(engine, seed, NUMBERS, count=6, pause=0.03), expected, seed)


@pytest.mark.parametrize("name", ["qwen3 next", "kimi linear", "ling 2.5", "nemotron h"])
def test_prompts_in_blocks_have_the_probabilities_of_those_token_after_token(name: str, tmp_path: Path) -> None:
    """Of 180 tokens in chunks of 100, which only the deterministic mode computes one by one. Operands of 16 bits make a
    difference of 0.12 to float32 in this model, on a CPU.
    """
    folder = written(name, tmp_path)
    prompt = [(37 * index) % 380 + 4 for index in range(180)]
    found: list[torch.Tensor] = []
    for deterministic in (False, True):
        engine = build(folder, torch.bfloat16, deterministic=deterministic)
        asked = stream(0, prompt, 1, prefill_logprobs=True)
        router(engine, chunk=100).run(asked)
        found.append(torch.tensor(asked.prompt_logprobs))
    by_blocks, one_by_one = found
    assert len(by_blocks) == len(prompt) - 1
    assert (by_blocks - one_by_one).abs().mean() < 0.06

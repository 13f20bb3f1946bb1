"""Recurrent layers as they serve: 16-bit types, in graphs, beside chunks, on the device."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.families import made, write
from support.gpu_engine import alone, build, check, schedule
from support.recurrent_cases import RECURRENT_CASES

pytestmark = pytest.mark.gpu
NUMBERS = 20


def written(name: str, folder: Path) -> Path:
    """The model of a case with the ids and the positions that the schedules have."""
    case = RECURRENT_CASES[name]
    case = replace(case, values={**case.values, "vocab_size": 384, "max_position_embeddings": 512})
    write(case, made(case), folder)
    return folder


@pytest.mark.parametrize("name", ["qwen3 next", "jamba", "nemotron h"])
def test_schedules_change_no_token(name: str, tmp_path: Path) -> None:
    """In deterministic mode, to the bit: chunks beside decodes, rows that change their owner, pauses."""
    engine = build(written(name, tmp_path), torch.bfloat16, deterministic=True)
    expected = alone(engine, NUMBERS)
    assert len({tuple(tokens) for tokens in expected}) > 15
    for seed in range(20):
        check(schedule(engine, seed, NUMBERS, count=6, pause=0.03), expected, seed)


@pytest.mark.parametrize("name", ["qwen3.5", "mamba", "nemotron h letters"])
def test_graphs_and_blocks_change_no_token_in_the_default_mode(name: str, tmp_path: Path) -> None:
    """In float32 nothing hangs on the last bits of these models."""
    engine = build(written(name, tmp_path), torch.float32)
    expected = alone(engine, NUMBERS)
    assert len({tuple(tokens) for tokens in expected}) > 15
    for seed in range(20):
        check(schedule(engine, seed, NUMBERS, count=6, pause=0.03), expected, seed)

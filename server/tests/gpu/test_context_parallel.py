"""Ranks that have some positions of latent attention each say what one rank says, in graphs, beside chunks of prompts,
behind prefixes and after pauses; no kernel is compiled after warm-up.
"""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.families import larger, write
from support.gpu_engine import alone, build
from support.gpu_ranks import on_every_rank, schedules
from support.latent_cases import LATENT_CASES

from text_generation_server.config import ParallelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices"),
]


@pytest.mark.parametrize("peer_memory", [True, False])
@pytest.mark.parametrize("world_size", [2, 4])
def test_schedules_change_no_token(world_size: int, peer_memory: bool, tmp_path: Path) -> None:
    if torch.cuda.device_count() < world_size:
        pytest.skip(f"needs {world_size} devices")
    folder = tmp_path / "model"
    write(LATENT_CASES["deepseek v3"], larger("deepseek v3", 384), folder)
    expected = alone(build(folder, torch.float32, cuda_graphs=()), numbers=20)
    assert len({tuple(tokens) for tokens in expected}) > 15
    parallel = ParallelConfig(0, world_size, tmp_path / "rendezvous", peer_memory, context_parallel=True)
    on_every_rank(partial(schedules, folder, expected), parallel)

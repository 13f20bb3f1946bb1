"""Ranks that have some positions of latent attention each say what one rank says, in graphs, beside chunks of prompts,
behind prefixes and after pauses; no kernel is compiled after warm-up.
"""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support.context_ranks import run_schedules
from support.families import larger, write
from support.gpu_engine import alone, build
from support.latent_cases import LATENT_CASES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices"),
]
NUMBERS = 20


@pytest.mark.parametrize("peer_memory", [True, False])
@pytest.mark.parametrize("world_size", [2, 4])
def test_schedules_change_no_token(world_size: int, peer_memory: bool, tmp_path: Path) -> None:
    if torch.cuda.device_count() < world_size:
        pytest.skip(f"needs {world_size} devices")
    folder = tmp_path / "model"
    write(LATENT_CASES["deepseek v3"], larger("deepseek v3", 384), folder)
    expected = alone(build(folder, torch.float32, cuda_graphs=()), NUMBERS)
    assert len({tuple(tokens) for tokens in expected}) > 15
    arguments = (world_size, folder, tmp_path, expected, peer_memory)
    mp.spawn(run_schedules, arguments, nprocs=world_size)
    assert {int((tmp_path / f"whole-{rank}").read_text()) > 20 for rank in range(world_size)} == {True}

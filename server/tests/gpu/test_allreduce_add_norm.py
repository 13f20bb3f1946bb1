"""Sums over ranks through memory that they share: one process on each of two devices, or of four."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support import peer_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < peer_ranks.WORLD, reason="needs two devices"),
]


def test_all_ranks_get_the_bits_of_the_definition(tmp_path: Path) -> None:
    mp.spawn(peer_ranks.ended, (peer_ranks.check_values, tmp_path), nprocs=peer_ranks.WORLD)


def test_graphs_are_replayed_in_turns(tmp_path: Path) -> None:
    mp.spawn(peer_ranks.ended, (peer_ranks.check_replays, tmp_path), nprocs=peer_ranks.WORLD)


def test_sums_run_beside_other_kernels(tmp_path: Path) -> None:
    mp.spawn(peer_ranks.ended, (peer_ranks.check_under_way, tmp_path), nprocs=peer_ranks.WORLD)


def test_products_send_their_results_themselves(tmp_path: Path) -> None:
    mp.spawn(peer_ranks.ended, (peer_ranks.check_sent, tmp_path), nprocs=peer_ranks.WORLD)


def test_a_rank_that_is_killed_is_an_error_and_nobody_hangs(tmp_path: Path) -> None:
    context = mp.spawn(peer_ranks.ended, (peer_ranks.check_absent, tmp_path), nprocs=peer_ranks.WORLD, join=False)
    for process in context.processes:
        process.join(60)
    assert (tmp_path / "found").exists()

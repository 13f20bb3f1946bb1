"""A rank that stands still or dies while the other one waits for it in a captured step: found within seconds, and
nothing stays on the devices.
"""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support.checkpoints import tiny_llama
from support.stuck_ranks import LIMIT_S, decode_until_unhealthy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices"),
]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("peer_memory", [True, False])
def test_a_lost_rank_is_found_and_leaves_nothing(
    peer_memory: bool, number: signal.Signals, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = tiny_llama(
        tmp_path_factory, hidden_size=512, num_attention_heads=8, num_key_value_heads=2, vocab_size=4096
    )
    free = [torch.cuda.mem_get_info(device)[0] for device in range(2)]
    ranks = mp.spawn(decode_until_unhealthy, (folder, tmp_path, peer_memory), nprocs=2, join=False)
    first, second = ranks.processes
    try:
        _wait_for(tmp_path / "decoding", 120)
        os.kill(second.pid, number)
        begin = time.monotonic()
        _wait_for(tmp_path / "unhealthy", LIMIT_S + 2)
        print(f"found after {time.monotonic() - begin:.2f} s")
        # What the launcher does then: a stop in order, and an end to who does not follow.
        first.join(5)
        print(f"the other rank ended after {time.monotonic() - begin:.2f} s with {first.exitcode}")
        assert first.exitcode is not None
        second.kill()
        second.join(5)
        assert second.exitcode is not None
    finally:
        for process in ranks.processes:
            process.kill()
    for device, before in enumerate(free):
        assert torch.cuda.mem_get_info(device)[0] > before - (64 << 20)


def _wait_for(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come in {seconds} s"
        time.sleep(0.02)

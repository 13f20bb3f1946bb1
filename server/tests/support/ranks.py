"""Runs several ranks on this machine, as processes that meet over gloo."""

from pathlib import Path

import torch
import torch.multiprocessing as mp

from text_generation_server.config import ParallelConfig
from text_generation_server.distributed import init_group

from .driver import Driver, greedy_by_turns
from .loading import CPU, load

PROMPTS = [[5, 9, 17, 23, 42, 77, 101], [4], [88, 12, 63], list(range(30, 60))]
STEPS = 8


def single_rank(folder: Path) -> tuple[torch.Tensor, list[list[int]]]:
    """Logits of a prefill and greedy ids, computed by one process."""
    model = load(folder)
    logits = Driver(model).prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)})
    return logits, greedy_by_turns(Driver(model), PROMPTS, STEPS)


def all_ranks(folders: list[Path], world_size: int, out: Path) -> list[list[tuple[torch.Tensor, list[list[int]]]]]:
    """The same for each folder from each rank of a group: `result[rank][folder]`."""
    mp.spawn(_run, (folders, world_size, out), nprocs=world_size)
    return [torch.load(out / f"{rank}.pt") for rank in range(world_size)]


def _run(rank: int, folders: list[Path], world_size: int, out: Path) -> None:
    torch.set_num_threads(1)
    group = init_group(ParallelConfig(rank, world_size, out / "rendezvous"), CPU, timeout_s=120)
    results = []
    for folder in folders:
        model = load(folder, group=group)
        logits = Driver(model).prefill({str(i): prompt for i, prompt in enumerate(PROMPTS)})
        results.append((logits, greedy_by_turns(Driver(model), PROMPTS, STEPS)))
    torch.save(results, out / f"{rank}.pt")
    if group.min_int(rank + 7) != 7:
        raise AssertionError("min_int must give the smallest value to every rank")
    group.close()

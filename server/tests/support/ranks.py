"""Runs several ranks on this machine, as processes that meet over gloo."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.multiprocessing as mp

from text_generation_server.config import ParallelConfig
from text_generation_server.distributed import TensorParallelGroup, init_group
from text_generation_server.models import CausalLM

from .driver import Driver, greedy_by_turns
from .loading import CPU, load

PROMPTS = [[5, 9, 17, 23, 42, 77, 101], [4], [88, 12, 63], list(range(30, 60))]
Results = tuple[torch.Tensor, list[list[int]]]
"""Logits of a prefill, and greedy ids."""


def single_rank(folder: Path, prompts: Sequence[list[int]] = PROMPTS, steps: int = 8) -> Results:
    """Computed by one process."""
    return results(load(folder), prompts, steps)


def all_ranks(
    folders: list[Path],
    world_size: int,
    out: Path,
    prompts: Sequence[list[int]] = PROMPTS,
    steps: int = 8,
    expert_parallel: bool = False,
) -> list[list[Results]]:
    """The same for each folder from each rank of a group: `result[rank][folder]`."""
    mp.spawn(_run, (folders, world_size, out, prompts, steps, expert_parallel), nprocs=world_size)
    return [torch.load(out / f"{rank}.pt") for rank in range(world_size)]


def results(
    model: CausalLM, prompts: Sequence[list[int]], steps: int, group: TensorParallelGroup | None = None
) -> Results:
    """Of one rank."""
    logits = Driver(model, max_tokens=64, group=group).prefill({str(i): prompt for i, prompt in enumerate(prompts)})
    return logits, greedy_by_turns(Driver(model, max_tokens=64, group=group), prompts, steps)


def _run(
    rank: int,
    folders: list[Path],
    world_size: int,
    out: Path,
    prompts: Sequence[list[int]],
    steps: int,
    expert_parallel: bool,
) -> None:
    torch.set_num_threads(1)
    parallel = ParallelConfig(rank, world_size, out / "rendezvous", expert_parallel=expert_parallel)
    group = init_group(parallel, CPU, timeout_s=120)
    computed = [results(load(folder, group=group), prompts, steps, group) for folder in folders]
    torch.save(computed, out / f"{rank}.pt")
    if group.min_int(rank + 7) != 7:
        raise AssertionError("min_int must give the smallest value to every rank")
    group.close()

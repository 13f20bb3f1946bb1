"""All-reduces: NCCL, torch's symmetric memory and ours, alone and with the residual add and norm that follow.

    python -m benchmark.kernels.allreduce_add_norm [--ranks 2] > benchmark/results/reduce_add_norm.json

Microseconds of one call, from graphs of many that all ranks replay together; the slowest rank counts. One process a
device. There is nothing to see on one device, or on none.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.multiprocessing as mp

from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable
from text_generation_server.distributed.group import TensorParallelGroup, init_group

from .report import print_rows

EPS = 1e-5
CALLS, WARM, REPLAYS = 40, 50, 25
SHAPES = [(1, 2048), (1, 4096), (1, 8192), (2, 8192), (4, 8192), (8, 8192), (16, 8192), (32, 8192), (64, 8192)]
SHAPES += [(128, 8192), (256, 8192), (512, 8192)]
"""Tokens and hidden size: messages of 4 KiB to 8 MiB."""


def microseconds(group: TensorParallelGroup, call: Callable[[], None]) -> float:
    """Of one call on the slowest rank."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            call()
    for _ in range(WARM):
        graph.replay()
    samples = []
    for _ in range(REPLAYS):
        group.min_int(0)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / CALLS)
    return group.max_ints([round(statistics.median(samples) * 1000)])[0] / 1000


def row(group: TensorParallelGroup, tokens: int, hidden: int) -> dict[str, Any]:
    """All algorithms for one shape."""
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device="cuda")
    residual, weight = torch.zeros_like(x), torch.ones(hidden, dtype=torch.bfloat16, device="cuda")
    found: dict[str, Any] = {"kib": x.numel() * 2 >> 10, "tokens": tokens, "hidden": hidden}
    name = dist.group.WORLD.group_name
    shared = symmetric_memory.empty(tokens * hidden, dtype=torch.bfloat16, device=x.device)
    symmetric_memory.rendezvous(shared, name)
    shared.zero_()
    # Both take ranks that are there already.
    torch.cuda.synchronize()
    group.min_int(0)
    found["torch one shot"] = microseconds(group, lambda: torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name))
    found["torch two shot"] = microseconds(group, lambda: torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", name))
    for algorithm in Algorithm:
        group._algorithms = AlgorithmTable((1 << 62,), (algorithm,))
        found[f"{algorithm.value}"] = microseconds(group, lambda: group.all_reduce(x))
        found[f"{algorithm.value}, add and norm"] = microseconds(
            group, lambda: group.allreduce_add_norm(x, residual, weight, EPS)
        )
    return found


def work(rank: int, ranks: int, folder: str) -> None:
    """One rank; the first writes the result."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    group = init_group(ParallelConfig(rank, ranks, Path(folder) / "rendezvous"), device, 60.0)
    chosen = group._algorithms
    rows = []
    for tokens, hidden in SHAPES:
        rows.append(row(group, tokens, hidden))
        if rank == 0:
            print(rows[-1], file=sys.stderr, flush=True)
    group.check()
    if rank == 0:
        result = {
            "benchmark": "allreduce_add_norm",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "chosen": {
                f"{limit >> 10} KiB": algorithm.value
                for limit, algorithm in zip(chosen.limits, chosen.algorithms, strict=True)
            },
            "rows": rows,
        }
        (Path(folder) / "result.json").write_text(json.dumps(result))
    # NCCL's own end waits for graphs.
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (arguments.ranks, folder), nprocs=arguments.ranks)
        print_rows(**json.loads((Path(folder) / "result.json").read_text()))

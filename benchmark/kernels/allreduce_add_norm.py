"""All-reduces: NCCL, torch's symmetric memory and ours, alone and with the residual add and norm that follow.

    python -m benchmark.kernels.allreduce_add_norm [--ranks 2] > benchmark/results/reduce_add_norm.json

Microseconds of one call, from graphs of many that all ranks replay together; the slowest rank counts. One process a
device. There is nothing to see on one device, or on none.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from text_generation_server.distributed.algorithms import Algorithm, AlgorithmTable
from text_generation_server.distributed.group import TensorParallelGroup

from .ranks import microseconds, run

EPS = 1e-5
SHAPES = [(1, 2048), (1, 4096), (1, 8192), (2, 8192), (4, 8192), (8, 8192), (16, 8192), (32, 8192), (64, 8192)]
SHAPES += [(128, 8192), (256, 8192), (512, 8192)]
"""Tokens and hidden size: messages of 4 KiB to 8 MiB."""


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


def measured(group: TensorParallelGroup) -> dict[str, Any]:
    """What one rank measures."""
    chosen = group._algorithms
    rows = []
    for tokens, hidden in SHAPES:
        rows.append(row(group, tokens, hidden))
        if group.rank == 0:
            print(rows[-1], file=sys.stderr, flush=True)
    limits = {
        f"{limit >> 10} KiB": algorithm.value for limit, algorithm in zip(chosen.limits, chosen.algorithms, strict=True)
    }
    return {"chosen": limits, "rows": rows}


if __name__ == "__main__":
    run("allreduce_add_norm", __doc__.splitlines()[0], measured)

"""Measurements of several ranks together, one process a device."""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from text_generation_server.config.parallel import ParallelConfig
from text_generation_server.distributed.group import TensorParallelGroup, init_group

from .report import print_rows

CALLS, WARM, REPLAYS = 40, 50, 25
Measure = Callable[[TensorParallelGroup], dict[str, Any]]
"""What every rank does; what the first returns is reported."""


def run(name: str, description: str, measure: Measure) -> None:
    """Runs what the command line asks for, and prints the result of `measure`, which must be picklable."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ranks", type=int, default=2)
    ranks: int = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_work, (ranks, folder, name, measure), nprocs=ranks)
        print_rows(**json.loads((Path(folder) / "result.json").read_text()))


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


def _work(rank: int, ranks: int, folder: str, name: str, measure: Measure) -> None:
    """One rank; the first writes the result."""
    torch.cuda.set_device(rank)
    group = init_group(ParallelConfig(rank, ranks, Path(folder) / "rendezvous"), torch.device("cuda", rank), 60.0)
    found = measure(group)
    group.check()
    if rank == 0:
        result = {"benchmark": name, "device": torch.cuda.get_device_name(), "torch": torch.__version__, **found}
        (Path(folder) / "result.json").write_text(json.dumps(result))
    # NCCL's own end waits for graphs.
    os._exit(0)

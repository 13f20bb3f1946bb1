"""Achieved fraction of copy bandwidth of `add_rms_norm`, against the copy measured in the same run.

    python benchmark/kernels/add_rms_norm.py [--dry-run] > benchmark/results/add_rms_norm.json

For each size a CUDA graph of many calls is replayed over rotating buffers that together exceed the L2 cache several
times, and the median replay is taken. The ceiling is a device-to-device copy, timed in the same way with a buffer of
1 GiB; small sizes are also compared with a copy of as many bytes, because there the launch decides.
`--dry-run` runs the same steps on CPU with tiny sizes and the torch implementation: it proves the script, not speed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_server import kernels

EPS = 1e-5
TOKENS = (1, 64, 4096, 16384)
HIDDEN = (4096, 8192)


@dataclass(frozen=True)
class Plan:
    """What is run, and on what."""

    device: torch.device
    dtype: torch.dtype
    tokens: tuple[int, ...]
    hidden: tuple[int, ...]
    rotation_bytes: int
    """Bytes that the rotating buffers cover at least: several times the L2 cache."""
    ceiling_bytes: int
    calls: int
    replays: int


GPU_PLAN = Plan(torch.device("cuda"), torch.bfloat16, TOKENS, HIDDEN, 512 << 20, 1 << 30, 64, 20)
DRY_PLAN = Plan(torch.device("cpu"), torch.float32, (1, 8), (64, 128), 1 << 20, 1 << 20, 4, 3)


def seconds_per_call(plan: Plan, call: Callable[[int], None], buffers: int) -> float:
    """Median time of `call(index of the buffer)`, launch cost excluded on CUDA."""
    calls = max(plan.calls, buffers)

    def run() -> None:
        for index in range(calls):
            call(index % buffers)

    run()  # compiles and warms up
    if plan.device.type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return statistics.median(_timed_replay(graph) for _ in range(plan.replays)) / calls
    return statistics.median(_timed(run) for _ in range(plan.replays)) / calls


def _timed_replay(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _timed(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def copy_bandwidth(plan: Plan, num_bytes: int) -> float:
    """Bytes a second of a copy that reads half of `num_bytes` and writes the other half.

    The faster of the driver's copy and an elementwise kernel: on an H200 the driver's reaches 2.8 TB/s at 1 GiB where
    a kernel reaches 4.
    """
    elements = max(num_bytes // 8, 1)
    buffers = max(2, -(-plan.rotation_bytes // num_bytes))
    sources = torch.ones(buffers, elements, dtype=torch.float32, device=plan.device)
    targets = torch.empty_like(sources)

    def copy(index: int) -> None:
        targets[index].copy_(sources[index])

    def negate(index: int) -> None:
        torch.neg(sources[index], out=targets[index])

    return num_bytes / min(seconds_per_call(plan, call, buffers) for call in (copy, negate))


def measure(plan: Plan, tokens: int, hidden: int, ceiling: float) -> dict[str, float | int]:
    """One row of the result."""
    element = torch.empty(0, dtype=plan.dtype).element_size()
    num_bytes = 4 * tokens * hidden * element  # read x and residual, write residual and out
    buffers = max(2, -(-plan.rotation_bytes // num_bytes))
    x, residual, out = (_random(plan, buffers, tokens, hidden) for _ in range(3))
    weight = torch.ones(hidden, dtype=plan.dtype, device=plan.device)

    def call(index: int) -> None:
        kernels.add_rms_norm(x[index], residual[index], weight, EPS, out[index])

    seconds = seconds_per_call(plan, call, buffers)
    achieved = num_bytes / seconds
    return {
        "tokens": tokens,
        "hidden": hidden,
        "microseconds": seconds * 1e6,
        "gigabytes_per_second": achieved / 1e9,
        "fraction_of_copy": achieved / ceiling,
        "fraction_of_copy_of_same_size": achieved / copy_bandwidth(plan, num_bytes),
    }


def _random(plan: Plan, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=plan.dtype, device=plan.device).normal_(std=1e-3)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on CPU, no Triton")
    plan = DRY_PLAN if parser.parse_args().dry_run else GPU_PLAN
    if plan.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device: use --dry-run")
    ceiling = copy_bandwidth(plan, plan.ceiling_bytes)
    result = {
        "benchmark": "add_rms_norm",
        "device": torch.cuda.get_device_name() if plan.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "dry_run": plan is DRY_PLAN,
        "copy_gigabytes_per_second": ceiling / 1e9,
        "rows": [measure(plan, tokens, hidden, ceiling) for hidden in plan.hidden for tokens in plan.tokens],
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

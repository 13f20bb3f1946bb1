"""Timing of operators without launch cost, and the bandwidth of a copy, which is their ceiling.

On CUDA a graph of many calls is replayed over rotating buffers that together exceed the L2 cache several times, and
the median replay is taken. With `--dry-run` the same steps run on CPU: that proves a bar, not speed.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Row = dict[str, float | int | str]
"""One line of a result."""
Call = Callable[[int], object]
"""Calls an operator on the buffers of an index."""
Prepared = tuple[int, Call]
"""Bytes that one call moves at least, and the call."""


@dataclass(frozen=True)
class Plan:
    """On what a bar runs, and how long."""

    device: torch.device
    dtype: torch.dtype
    rotation_bytes: int
    """Bytes that the rotating buffers cover at least: several times the L2 cache."""
    ceiling_bytes: int
    """Bytes that the copy of the ceiling moves."""
    calls: int
    """Calls in one graph at least; each buffer is used once at least."""
    replays: int

    @property
    def dry_run(self) -> bool:
        """Whether there is no GPU: bars choose tiny sizes then."""
        return self.device.type == "cpu"

    def buffers(self, num_bytes: int) -> int:
        """How many sets of `num_bytes` fill the rotation, up to what a graph takes: tiny sizes stay in the cache."""
        return min(max(2, -(-self.rotation_bytes // num_bytes)), _MOST_BUFFERS)

    def normal(self, *shape: int, dtype: torch.dtype | None = None, std: float = 1.0) -> Tensor:
        """Normal numbers, in the model's type unless said otherwise."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device).normal_(std=std)


_MOST_BUFFERS = 8192
GPU_PLAN = Plan(torch.device("cuda"), torch.bfloat16, 512 << 20, 1 << 30, 64, 20)
DRY_PLAN = Plan(torch.device("cpu"), torch.float32, 1 << 18, 1 << 20, 4, 3)


def seconds_per_call(plan: Plan, call: Call, buffers: int) -> float:
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
    buffers = plan.buffers(num_bytes)
    sources = torch.ones(buffers, elements, dtype=torch.float32, device=plan.device)
    targets = torch.empty_like(sources)

    def copy(index: int) -> None:
        targets[index].copy_(sources[index])

    def negate(index: int) -> None:
        torch.neg(sources[index], out=targets[index])

    return num_bytes / min(seconds_per_call(plan, call, buffers) for call in (copy, negate))


def gemm_rate(plan: Plan) -> float:
    """Operations a second of a GEMM of large square matrices."""
    size = 16 if plan.dry_run else 8192
    a, b, out = plan.normal(3, size, size)
    return 2 * size**3 / seconds_per_call(plan, lambda _: torch.mm(a, b, out=out), 1)

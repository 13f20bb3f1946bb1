"""All-reduce algorithms: the fastest one for each message size, as measured at start-up."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from torch import Tensor

SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 23, 24))
"""Message sizes to measure, rounded down to whole tokens: 16 KiB to 16 MiB."""
USUAL_HIDDEN_SIZE = 8192
"""For models whose hidden size is not known."""
_CALLS = 12
_WARM, _REPLAYS, _ROUNDS = 5, 10, 4


class Algorithm(Enum):
    """An all-reduce algorithm."""

    NCCL = "NCCL"
    """NCCL, and a separate kernel for the residual add and RMSNorm."""
    ONE_SHOT = "one shot"
    TWO_SHOTS = "two shots"


Timings = Mapping[int, Mapping[Algorithm, float]]
"""Times of each algorithm by the bytes of a message; algorithms that do not take a size are missing there."""


@dataclass(frozen=True)
class AlgorithmTable:
    """The algorithm for every message size."""

    limits: Sequence[int] = ()
    """Bytes, ascending: a message belongs to the first limit that is not below its size."""
    algorithms: Sequence[Algorithm] = ()
    """One for each limit. Messages above all limits are NCCL's."""

    @classmethod
    def fastest(cls, timings: Timings) -> "AlgorithmTable":
        """The fastest algorithm at each measured size, NCCL where it is as fast."""
        sizes = sorted(timings)
        chosen = [
            min((each for each in Algorithm if each in timings[size]), key=timings[size].__getitem__) for size in sizes
        ]
        return cls(tuple(sizes), tuple(chosen))

    def of(self, num_bytes: int) -> Algorithm:
        """The algorithm for a message of that size."""
        index = bisect_left(self.limits, num_bytes)
        return self.algorithms[index] if index < len(self.algorithms) else Algorithm.NCCL

    @property
    def any_of_ours(self) -> bool:
        """Whether some size is not NCCL's."""
        return any(algorithm is not Algorithm.NCCL for algorithm in self.algorithms)


Reduction = Callable[[Algorithm, Tensor, Tensor, Tensor], None]
"""All-reduce + residual add + RMSNorm by an algorithm: x, residual, weight. Raises ValueError for sizes that the
algorithm does not take."""


def measure(
    reduce: Reduction, device: torch.device, hidden_size: int, dtype: torch.dtype = torch.bfloat16
) -> dict[int, dict[Algorithm, int]]:
    """Nanoseconds of one call in a CUDA graph, by the bytes of its message, on this rank. Every rank measures at the
    same time. `hidden_size`: values of a token, on which times depend as well as on bytes.

    Algorithms of a size are timed in turns, and the least time of each counts, because machines have slow moments
    (docs/lab/2026-11-all-reduce-kernels.md).
    """
    found: dict[int, dict[Algorithm, int]] = {}
    weight = torch.ones(hidden_size, dtype=dtype, device=device)
    for size in SIZES:
        tokens = max(1, size // (hidden_size * dtype.itemsize))
        x, residual = torch.zeros(2, tokens, hidden_size, dtype=dtype, device=device)
        graphs: dict[Algorithm, torch.cuda.CUDAGraph] = {}
        for algorithm in Algorithm:
            try:
                graphs[algorithm] = _captured(partial(reduce, algorithm, x, residual, weight), device)
            except ValueError:
                continue
        rounds = [{algorithm: _timed(graph) for algorithm, graph in graphs.items()} for _ in range(_ROUNDS)]
        found[x.nbytes] = {
            algorithm: int(min(times[algorithm] for times in rounds) * 1e6 / _CALLS) for algorithm in graphs
        }
    return found


def _captured(call: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_CALLS):
            call()
    return graph


def _timed(graph: torch.cuda.CUDAGraph) -> float:
    """Milliseconds of one replay, averaged over several."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_WARM):
        graph.replay()
    start.record()
    for _ in range(_REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / _REPLAYS

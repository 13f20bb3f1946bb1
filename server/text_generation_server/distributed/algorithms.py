"""All-reduce backends: the fastest one for each message size, as measured on this machine."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from torch import Tensor

SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 23, 24))
"""Bytes of the messages that are measured, at most: 16 KiB to 16 MiB."""
USUAL_HIDDEN_SIZE = 8192
"""Of models of which it is not known."""
_CALLS = 12
_WARM, _REPLAYS, _ROUNDS = 5, 10, 4


class Algorithm(Enum):
    """How the ranks sum up."""

    LIBRARY = "library"
    """NCCL, and a kernel of its own for what follows."""
    ONE_SHOT = "one shot"
    TWO_SHOTS = "two shots"


Timings = Mapping[int, Mapping[Algorithm, float]]
"""Microseconds of each algorithm by the bytes of a message; a algorithm that does not take a size is missing there."""


@dataclass(frozen=True)
class AlgorithmTable:
    """The choice for every size."""

    limits: Sequence[int] = ()
    """Bytes, ascending: a size belongs to the first that is not below it."""
    algorithms: Sequence[Algorithm] = ()
    """As many. What is larger than all limits is for the library."""

    @classmethod
    def fastest(cls, timings: Timings) -> "AlgorithmTable":
        """The fastest algorithm at each measured size, the library where it is as fast."""
        sizes = sorted(timings)
        chosen = [min((each for each in Algorithm if each in timings[size]), key=timings[size].__getitem__) for size in sizes]
        return cls(tuple(sizes), tuple(chosen))

    def of(self, num_bytes: int) -> Algorithm:
        """For a message of that size."""
        index = bisect_left(self.limits, num_bytes)
        return self.algorithms[index] if index < len(self.algorithms) else Algorithm.LIBRARY

    @property
    def any_of_ours(self) -> bool:
        """Whether there is a size for which the library is not chosen."""
        return any(algorithm is not Algorithm.LIBRARY for algorithm in self.algorithms)


Reduction = Callable[[Algorithm, Tensor, Tensor, Tensor], None]
"""Sums, adds and normalises in this algorithm: x, residual, weight. Raises ValueError for a size that the algorithm cannot do."""


def measure(
    reduce: Reduction, device: torch.device, hidden_size: int, dtype: torch.dtype = torch.bfloat16
) -> dict[int, dict[Algorithm, int]]:
    """Nanoseconds of one call in a graph, by the bytes of its message, on this rank. Every rank measures at the same
    time. `hidden_size`: values of a token, on which times depend as well as on bytes: on two H200 4 MiB took 19 us in
    one shot and 17 in two with tokens of 8192 values, 20 and 34 with tokens of 4096.

    The algorithms of a size are timed in turns and the least time of each counts: on one machine every algorithm was slower by some
    0.1 ms a message for parts of a second, which is more than what is measured.
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
        found[x.nbytes] = {algorithm: int(min(times[algorithm] for times in rounds) * 1e6 / _CALLS) for algorithm in graphs}
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
    """Milliseconds of one replay, in the middle of several."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_WARM):
        graph.replay()
    start.record()
    for _ in range(_REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / _REPLAYS

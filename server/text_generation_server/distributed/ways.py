"""Which way of summing over the ranks is the fastest for a message of a size, as measured on this machine."""

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 23))
"""Bytes of the messages that are measured: 16 KiB to 8 MiB."""
_HIDDEN = 8192
_CALLS = 12
_REPLAYS = 9
_WARM = 40
"""Replays before those that are timed: a device that was idle is slower at first."""


class Way(Enum):
    """How the ranks sum up."""

    LIBRARY = "library"
    """NCCL, and a kernel of its own for what follows."""
    ONE_SHOT = "one shot"
    TWO_SHOTS = "two shots"


Timings = Mapping[int, Mapping[Way, float]]
"""Microseconds of each way by the bytes of a message; a way that does not take a size is missing there."""


@dataclass(frozen=True)
class Ways:
    """The choice for every size."""

    limits: Sequence[int] = ()
    """Bytes, ascending: a size belongs to the first that is not below it."""
    ways: Sequence[Way] = ()
    """As many. What is larger than all limits is for the library."""

    @classmethod
    def fastest(cls, timings: Timings) -> "Ways":
        """The fastest way at each measured size, the library where it is as fast."""
        sizes = sorted(timings)
        chosen = [min((each for each in Way if each in timings[size]), key=timings[size].__getitem__) for size in sizes]
        return cls(tuple(sizes), tuple(chosen))

    def of(self, num_bytes: int) -> Way:
        """For a message of that size."""
        index = bisect_left(self.limits, num_bytes)
        return self.ways[index] if index < len(self.ways) else Way.LIBRARY

    @property
    def any_of_ours(self) -> bool:
        """Whether there is a size for which the library is not chosen."""
        return any(way is not Way.LIBRARY for way in self.ways)


Reduction = Callable[[Way, Tensor, Tensor, Tensor], None]
"""Sums, adds and normalises in this way: x, residual, weight. Raises ValueError for a size that the way cannot do."""


def measure(reduce: Reduction, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> dict[int, dict[Way, int]]:
    """Nanoseconds of one call in a graph, on this rank. Every rank measures at the same time.

    The host launches each call that is measured by replaying graphs, as in serving.
    """
    found: dict[int, dict[Way, int]] = {}
    weight = torch.ones(_HIDDEN, dtype=dtype, device=device)
    for size in SIZES:
        shape = (size // _HIDDEN // dtype.itemsize, _HIDDEN)
        x, residual = torch.zeros(2, *shape, dtype=dtype, device=device)
        found[size] = {}
        for way in Way:
            try:
                reduce(way, x, residual, weight)
            except ValueError:
                continue
            found[size][way] = _timed(lambda way=way, x=x, residual=residual: reduce(way, x, residual, weight), device)
    return found


def _timed(call: Callable[[], None], device: torch.device) -> int:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_CALLS):
            call()
    for _ in range(_WARM):
        graph.replay()
    samples: list[float] = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return int(statistics.median(samples) * 1e6 / _CALLS)

"""Memory budget of a device, and what is left for the KV pool."""

from dataclasses import dataclass

_RESERVE_FRACTION, _MOST_RESERVED = 0.01, 1 << 30
"""Part of a device that nobody gets, and its bytes at most: kernels that are loaded later, buffers that libraries take
for sizes which the largest steps do not have, and gaps between tensors. None of that grows with a device."""
_MARGIN = 256 << 20
"""Bytes that a pool leaves whose size warm-up chooses. What is free differs by some MiB from start to start; the shards
that take the place of lost ones are asked for the pool that clients know of, and must have room for it."""
_GIB = 2**30


@dataclass(frozen=True)
class MemoryBudget:
    """All in bytes. `others`: what other processes, CUDA and the buffers of its libraries take; `step`: what the
    largest step needs beside weights, rows and pool.
    """

    device: str
    total: int
    fraction: float
    others: int
    weights: int
    step: int
    graphs: int
    states: int = 0
    """Of recurrent layers, for all rows."""
    copies: int = 0
    """Of weights of few bits, with 16 bits."""

    @property
    def reserve(self) -> int:
        """What stays free."""
        return min(int(self.total * _RESERVE_FRACTION), _MOST_RESERVED)

    def room(self, chosen: bool) -> int:
        """For pool and rows; negative where it does not even suffice without them. `chosen`: the size of the pool is
        asked for, and is not to be made up here.
        """
        taken = self.weights + self.copies + self.states + self.step + self.graphs + self.others
        room = int(self.total * self.fraction) - taken - self.reserve
        return room if chosen else room - _MARGIN

    def fields(self) -> dict[str, float]:
        """GiB of each part, for the log."""
        names = ("total", "others", "weights", "copies", "states", "step", "graphs", "reserve")
        parts = {name: getattr(self, name) for name in names}
        return {f"{name}_gib": round(size / _GIB, 2) for name, size in parts.items()}

    def __str__(self) -> str:
        copies = f", their copies with 16 bits {_gib(self.copies)}" if self.copies else ""
        states = f", states of the rows of --max-batch-size {_gib(self.states)}" if self.states else ""
        return (
            f"of the {_gib(self.total)} GiB of {self.device} --cuda-memory-fraction {self.fraction:g} allows "
            f"{_gib(self.total * self.fraction)}; weights take {_gib(self.weights)}{copies}{states}, the largest "
            f"step {_gib(self.step)}, CUDA graphs {_gib(self.graphs)}, other processes and libraries "
            f"{_gib(self.others)}, and {_gib(self.reserve)} stay in reserve"
        )


def gib(size: float) -> str:
    """Bytes as people read them."""
    return f"{_gib(size)} GiB"


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f}"

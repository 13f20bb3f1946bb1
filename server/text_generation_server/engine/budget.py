"""Memory budget of a device, and what it leaves for the KV pool."""

from dataclasses import dataclass

_RESERVE_FRACTION, _MOST_RESERVED = 0.01, 1 << 30
"""Fraction of a device that stays free, and its upper bound in bytes: for kernels that are loaded later, buffers that
libraries allocate for sizes which the largest steps do not have, and gaps between tensors. None of these grows with the
device."""
_MARGIN = 256 << 20
"""Bytes that a pool leaves free if warm-up chooses its size. Free memory differs by some MiB from start to start, and
shards that start again must have room for the pool of the shards that were lost."""
_GIB = 2**30


@dataclass(frozen=True)
class MemoryBudget:
    """The parts of a device's memory, in bytes. `others` is what other processes, CUDA and the buffers of its libraries
    take; `step` is what the largest step needs besides weights, rows and pool.
    """

    device: str
    total: int
    fraction: float
    others: int
    weights: int
    step: int
    graphs: int
    states: int = 0
    """States of recurrent layers, for all rows."""
    copies: int = 0
    """16-bit copies of weight-only quantised matrices."""
    media: int = 0
    """The media pool, pixels that wait, and what encoding the largest item takes."""
    adapters: int = 0
    """Pages for adapters."""

    @property
    def reserve(self) -> int:
        """The bytes that stay free."""
        return min(int(self.total * _RESERVE_FRACTION), _MOST_RESERVED)

    def room(self, chosen: bool) -> int:
        """Returns the bytes for pool and rows; negative where memory does not suffice even without them. `chosen` says
        that the operator has chosen the size of the pool.
        """
        taken = self.weights + self.copies + self.adapters + self.states + self.media
        taken += self.step + self.graphs + self.others
        room = int(self.total * self.fraction) - taken - self.reserve
        return room if chosen else room - _MARGIN

    def fields(self) -> dict[str, float]:
        """Returns the GiB of each part, for the log."""
        names = ("total", "others", "weights", "copies", "adapters", "states", "media", "step", "graphs", "reserve")
        parts = {name: getattr(self, name) for name in names}
        return {f"{name}_gib": round(size / _GIB, 2) for name, size in parts.items()}

    def __str__(self) -> str:
        copies = f", their 16-bit copies {_gib(self.copies)}" if self.copies else ""
        adapters = f", pages for adapters {_gib(self.adapters)}" if self.adapters else ""
        states = f", states of the rows of --max-batch-size {_gib(self.states)}" if self.states else ""
        media = f", images {_gib(self.media)}" if self.media else ""
        return (
            f"of the {_gib(self.total)} GiB of {self.device} --cuda-memory-fraction {self.fraction:g} allows "
            f"{_gib(self.total * self.fraction)}; weights take {_gib(self.weights)}{copies}{adapters}{states}{media}, "
            f"the largest step {_gib(self.step)}, CUDA graphs {_gib(self.graphs)}, other processes and libraries "
            f"{_gib(self.others)}, and {_gib(self.reserve)} stay in reserve"
        )


def gib(size: float) -> str:
    """Formats bytes in GiB."""
    return f"{_gib(size)} GiB"


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f}"

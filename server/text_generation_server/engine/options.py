"""How the engine runs: what the operator chose, and what follows from the device."""

from dataclasses import dataclass
from enum import Enum


class RunAhead(Enum):
    """When the next decode step starts, which the results of the last need not be known for."""

    NEVER = "never"
    """When it is called for."""
    BETWEEN_CALLS = "between calls"
    """After a reply, so that it is computed while the reply travels: where the host itself computes."""
    BEFORE_WAITING = "before waiting"
    """Before the results of the last are waited for: where a device works beside the host."""


@dataclass(frozen=True)
class EngineOptions:
    """Equal on all ranks."""

    memory_fraction: float = 1.0
    """Part of a CUDA device's memory that this process may use."""
    cuda_graphs: tuple[int, ...] | None = None
    """Batch sizes of decode that get a graph; none: no graphs. None: a default set, on CUDA."""
    run_ahead: RunAhead = RunAhead.NEVER
    deterministic: bool = False
    """Results of a request are bitwise the same in every batch."""

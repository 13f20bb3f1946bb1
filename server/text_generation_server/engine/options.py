"""Options of the engine: what the operator chose, and what follows from the device."""

from dataclasses import dataclass

from ..config.copies import DequantisedCopies


@dataclass(frozen=True)
class EngineOptions:
    """Equal on all ranks."""

    memory_fraction: float = 1.0
    """Part of a CUDA device's memory that this process may use."""
    cuda_graphs: tuple[int, ...] | None = None
    """Batch sizes of decode that get a graph; none: no graphs at all. None: a default set, on CUDA."""
    deterministic: bool = False
    """Results of a request are bitwise the same in every batch and however its prompt is cut."""
    dequantised_copies: DequantisedCopies = "auto"
    """Whether matrices of few bits are kept with 16 bits besides; not where `deterministic`."""

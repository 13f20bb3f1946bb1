"""Options of the engine: what the operator chose, and what the device implies."""

from dataclasses import dataclass, field

from ..config.copies import DequantisedCopies
from ..config.server import HubConfig


@dataclass(frozen=True)
class EngineOptions:
    """The options, which are equal on all ranks."""

    memory_fraction: float = 1.0
    """Fraction of a CUDA device's memory that this process may use."""
    cuda_graphs: tuple[int, ...] | None = None
    """Batch sizes of decode that get a CUDA graph; empty: no graphs at all. None: a default set, on CUDA."""
    deterministic: bool = False
    """Whether results of a request are bitwise equal in every batch and however its prompt is cut."""
    speculate: int = 0
    """The most drafts of a row in one step; 0: there is no speculation."""
    dequantised_copies: DequantisedCopies = "auto"
    """Whether to keep 16-bit copies of weight-only quantised matrices; never where `deterministic`."""
    hub: HubConfig = field(default_factory=HubConfig)
    """Where adapters are that the hub's names name."""

"""The MLPs of a mixture that one rank has."""

from dataclasses import dataclass

from ..norm.activations import is_gated
from .expert_matrix import ExpertMatrix


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMlps:
    """Experts of one size, of one layer and rank. The layer owns the matrices; operators only read them."""

    gate_up: ExpertMatrix
    """From `hidden` to `2 * inner`, gate rows first, or without a gate to `inner`."""
    down: ExpertMatrix
    """From `inner` to `hidden`."""
    activation: str
    """A key of `GATED`, or of `ALONE` where there is no gate, in `activations.py`."""
    all_experts: int | None = None
    """How many experts the mixture has, where other ranks have some of them; None: those here are all."""

    @property
    def hidden(self) -> int:
        """Elements of a token."""
        return self.down.outputs

    @property
    def inner(self) -> int:
        """Activated values of an expert."""
        return self.gate_up.outputs // (2 if is_gated(self.activation) else 1)

    @property
    def total(self) -> int:
        """How many experts the mixture has on all ranks."""
        return self.all_experts or self.down.experts

    @property
    def held(self) -> int | None:
        """How many experts this rank has, where others have some; else None."""
        return self.down.experts if self.down.experts < self.total else None

"""What attention of some model families does differently. Each is a compile-time switch: off, it costs nothing."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """Raises ValueError for a negative window or softcap.

    With all of them, the score of key k for query q is `softcap * tanh(scale * q.k / softcap) + slope * (k - q)`.
    """

    window: int = 0
    """0: a position attends to all before it and to itself; else position q attends to k with q - window < k <= q."""
    softcap: float = 0.0
    """0: off; else scores become softcap * tanh(scale * q.k / softcap) (Gemma 2)."""
    sinks: Tensor | None = None
    """`[heads]` float32, heads of this rank: a logit that is only added to the denominator (gpt-oss)."""
    slopes: Tensor | None = None
    """`[heads]` float32, heads of this rank: slope * (k - q) is added to the scaled score (ALiBi, Press et al., 2021).
    """

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("softcap", self.softcap)):
            if value < 0:
                raise ValueError(f"attention: {name} is {value}; give a positive number, or 0 for none")

    def arguments(self) -> tuple[int, float, Tensor | None, Tensor | None]:
        """The options as the operators take them, because a schema of torch knows no classes."""
        return self.window, self.softcap, self.sinks, self.slopes


NO_OPTIONS = AttentionOptions()

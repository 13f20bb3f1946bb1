"""Attention options of some model families (window, softcap, sinks, ALiBi), each a compile-time switch."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """Raises ValueError for a negative window or softcap.

    With all of them, the score of key k for query q is `softcap * tanh(scale * q.k / softcap) + slope * (k - q)`.
    """

    window: int = 0
    """Sliding window: position q attends to k with q - window < k <= q; 0: to all k <= q."""
    softcap: float = 0.0
    """Scores become softcap * tanh(scale * q.k / softcap) (Gemma 2); 0: off."""
    sinks: Tensor | None = None
    """`[heads]` float32, heads of this rank: a logit that only the softmax denominator counts (gpt-oss)."""
    slopes: Tensor | None = None
    """`[heads]` float32, heads of this rank: slope * (k - q) is added to the scaled score (ALiBi, Press et al., 2021).
    """

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("softcap", self.softcap)):
            if value < 0:
                raise ValueError(f"attention: {name} is {value}; give a positive number, or 0 for none")


NO_OPTIONS = AttentionOptions()

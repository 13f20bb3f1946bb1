"""Norms of a decoder."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NormSpec:
    """A norm over the last dimension."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    """RMS norm, or layer norm."""
    bias: bool = False
    wide: bool = False
    """Whether the norm multiplies by its weight in float32 and rounds once, as Gemma and OLMo do; else it rounds the
    normalised value before."""
    one_plus: bool = False
    """Whether the weight w is stored as w - 1."""
    weight: bool = True
    """False: the norm has neither weight nor bias."""


@dataclass(frozen=True)
class QkNormSpec:
    """The norm of queries and keys, before (or after) RoPE."""

    norm: NormSpec
    over: Literal["head", "heads", "width"] = "head"
    """Whether the norm is over each head, with one weight for all ("head") or one for each ("heads"), or over all heads
    of all ranks together ("width")."""
    after_rope: bool = False

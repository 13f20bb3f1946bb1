"""Rotary position embedding as data (`rope.py` reads it from `config.json`)."""

import math
from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True)
class QueryGrowth:
    """Queries at position p are multiplied by `1 + slope * ln(1 + floor((p + first) / length))` (Llama 4). For
    attention without biases and normalisation of queries.
    """

    slope: float
    length: int
    first: int = 0


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding: the base and how it is stretched (`layers/rope.py` holds the formulas).

    `original_max_position_embeddings` is the context length of pre-training. Fields that a type does not use keep
    their defaults.
    """

    rope_type: RopeType = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 2048
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    """longrope: the divisor of each frequency in contexts up to the original length."""
    long_factors: tuple[float, ...] = ()
    """longrope: the divisor of each frequency in longer contexts."""
    rotary_dim: int = 0
    """The number of first elements of a head that are rotated; 0 means all."""
    still_pairs: int = 0
    """The last pairs of a head whose frequency is 0, so that nothing rotates them (Gemma 4); they are of no type that
    has factors of its own."""
    interleaved: bool = False
    """Elements 2i and 2i + 1 of a stored head are a pair; else i and i + rotary_dim / 2."""
    query_growth: QueryGrowth | None = None
    """None: queries do not grow with their position."""
    axes: tuple[int, ...] = ()
    """M-RoPE: the axis along which the positions of each rotated pair count: 0 time, 1 height, 2 width. In text all
    three are the same. Empty: there is one axis."""

    def temperature(self, weight: float) -> float:
        """Returns the factor by which YaRN sharpens attention over stretched positions (Peng et al., 2023)."""
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

"""The specs of several residual streams, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AltUpSpec:
    """Several residual streams (AltUp, Baykal et al., 2023; Gemma 3n): each layer predicts all of them from all,
    computes one, the active one, and corrects the others by how far that one was from its prediction.
    """

    count: int
    active: int
    rank: int
    """Of the low-rank matrices beside attention (LAuReL, Menghani et al., 2024)."""
    scaled: bool
    """Whether a learned vector multiplies the active stream before the input of the layer reads it."""


@dataclass(frozen=True)
class HyperConnectionsSpec:
    """Several residual streams (manifold-constrained hyper-connections, Xie et al., 2026; GLM 5.3 Flash, DeepSeek V4):
    each sublayer reads a weighted sum of all of them, adds to each, and mixes them by a matrix whose rows and columns
    sum to 1. The first layer reads copies of the embedding, and the head the mean or a weighted sum of the streams.
    """

    count: int
    eps: float
    """What is added to weights, and to sums by which they are divided."""
    iterations: int
    """Of the algorithm that makes rows and columns sum to 1 (Sinkhorn and Knopp, 1967)."""
    norm_eps: float
    """Epsilon of the norm of all streams together, from which weights are made."""
    weighted_end: bool = False
    """Whether the head reads a weighted sum of the streams, whose weights are made of all of them."""


StreamsSpec = AltUpSpec | HyperConnectionsSpec
"""Several residual streams."""

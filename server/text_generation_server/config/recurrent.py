"""Recurrent mixers as data, with a state of each request whose size does not depend on the length of the context: the
counterpart of `spec.py`. Counts are those of the whole model, not of a rank.
"""

import math
from dataclasses import dataclass
from typing import Literal

from .parallel import kv_heads_of_rank


@dataclass(frozen=True)
class GatedDeltaSpec:
    """Gated delta net of one layer (Yang et al., 2024): a state takes the place of keys and values. Each new token
    makes it decay, corrects what it holds for the token's key, and reads it.
    """

    num_heads: int
    """Of values, each with a state of its own."""
    num_key_heads: int
    """Of queries and keys; each belongs to as many heads."""
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution before sees, the newest included."""
    norm_eps: float
    """Of the normalisation of what a head reads, which a gate multiplies."""

    def inputs(self, shards: int) -> int:
        """Of the convolution on one of so many shards."""
        keys = kv_heads_of_rank(self.num_heads, self.num_key_heads, shards) * self.key_dim
        return 2 * keys + self.num_heads // shards * self.value_dim

    def state(self, shards: int) -> int:
        """Elements of a request's state on one of so many shards."""
        return self.num_heads // shards * self.key_dim * self.value_dim


@dataclass(frozen=True)
class MambaSpec:
    """Selective state space of one layer (Mamba, Gu and Dao, 2023): each channel has a state of its own."""

    channels: int
    state_size: int
    """Elements of a channel's state."""
    kernel: int
    """As of `GatedDeltaSpec`."""
    rank: int
    """Elements of the vector that the channels' time steps are products of."""
    bias: bool = False
    """The first and the last product have one."""
    conv_bias: bool = True
    norm_eps: float | None = None
    """Of normalisations of that vector, and of what writes and reads the states; None: there are none."""
    norm_weights: bool = True
    """These normalisations have weights."""

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards * self.state_size


@dataclass(frozen=True)
class Mamba2Spec:
    """State space of one layer whose heads decay as a whole (Mamba 2, Dao and Gu, 2024)."""

    num_heads: int
    head_dim: int
    """Channels of a head."""
    groups: int
    """Of heads: those of a group share what writes and reads their states. Several ranks may hold the same one."""
    state_size: int
    """Elements of a channel's state."""
    kernel: int
    """As of `GatedDeltaSpec`."""
    norm_eps: float
    """Of the normalisation of results, which a gate has multiplied."""
    norm_over: Literal["group", "width"] = "group"
    """Each group by itself; all groups of all ranks together."""
    bias: bool = False
    """The first and the last product have one."""
    conv_bias: bool = True
    least_step: float = 0.0
    """Lower bound of time steps."""
    most_step: float = math.inf
    """Upper bound."""

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        groups = kv_heads_of_rank(self.num_heads, self.groups, shards)
        return self.num_heads // shards * self.head_dim + 2 * groups * self.state_size

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.num_heads // shards * self.head_dim * self.state_size


@dataclass(frozen=True)
class ShortConvSpec:
    """Convolution of one layer between two gates (LFM 2, Liquid AI, 2025): it has no state but its last inputs."""

    channels: int
    kernel: int
    """As of `GatedDeltaSpec`."""
    bias: bool = False
    """Both products and the convolution have one."""

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards

    def state(self, shards: int) -> int:  # noqa: ARG002 - as the others have it
        """As of `GatedDeltaSpec`: none."""
        return 0


RecurrentSpec = GatedDeltaSpec | MambaSpec | Mamba2Spec | ShortConvSpec

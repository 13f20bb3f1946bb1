"""Recurrent mixers as data, the counterpart of `spec.py`. Each request has a state, whose size does not depend on the
length of the context. Counts are those of the whole model, not of a rank.
"""

import math
from dataclasses import dataclass
from typing import Literal

from .parallel import kv_heads_of_rank
from .rotary import RopeSpec


@dataclass(frozen=True)
class GatedDeltaSpec:
    """Gated delta net of one layer (Yang et al., 2024): a state takes the place of keys and values. Each new token
    makes it decay, corrects what it holds for the token's key, and reads it.
    """

    num_heads: int
    """Heads of values, each with a state of its own."""
    num_key_heads: int
    """Heads of queries and keys, which equally many heads of values share."""
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution sees, the newest included."""
    norm_eps: float
    """Epsilon of the gated norm of what a head reads."""
    most_beta: Literal[1, 2] = 1
    """Upper bound of how much of a state's value for a key is corrected; with 2, values may change sign (negative
    eigenvalues, Grazzi et al., 2024)."""

    def inputs(self, shards: int) -> int:
        """Returns the inputs of the convolution on one of so many shards."""
        keys = kv_heads_of_rank(self.num_heads, self.num_key_heads, shards) * self.key_dim
        return 2 * keys + self.num_heads // shards * self.value_dim

    def state(self, shards: int) -> int:
        """Returns the elements of a request's state on one of so many shards."""
        return self.num_heads // shards * self.key_dim * self.value_dim

    def read(self, shards: int) -> int:
        """Returns the elements that the recurrence reads of a token on one of so many shards, gates included."""
        heads = self.num_heads // shards
        return self.inputs(shards) + heads * (self.value_dim + 2)


@dataclass(frozen=True)
class KimiDeltaSpec:
    """Kimi delta attention of one layer (KDA, Kimi Team, 2025): a gated delta net whose states decay by channel of a
    key, with as many heads of keys as of values.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """As of `GatedDeltaSpec`, as the next one."""
    norm_eps: float
    rank: int = 0
    """Elements of the low-rank vectors from which decays and gates of the result are made; 0: they are made of hidden
    states."""
    least: float = 0.0
    """Lower bound of log decays, below 0, which the sigmoid then approaches; 0: there is none, and they are a softplus.
    """

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.num_heads // shards * (2 * self.key_dim + self.value_dim)

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.num_heads // shards * self.key_dim * self.value_dim

    def read(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.inputs(shards) + self.num_heads // shards * (self.key_dim + 1)


@dataclass(frozen=True)
class MambaSpec:
    """Selective state space of one layer (Mamba, Gu and Dao, 2023): each channel has a state of its own."""

    channels: int
    state_size: int
    """Elements of a channel's state."""
    kernel: int
    """As of `GatedDeltaSpec`."""
    rank: int
    """Elements of the low-rank vector of time steps."""
    bias: bool = False
    """Whether the first and the last projection have a bias."""
    conv_bias: bool = True
    norm_eps: float | None = None
    """Epsilon of the norms of that vector, of B and of C; None: the layer has no such norms."""
    norm_weights: bool = True
    """Whether these norms have weights."""

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards * self.state_size

    def read(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return 2 * (self.channels // shards + self.state_size)


@dataclass(frozen=True)
class Mamba2Spec:
    """State space of one layer whose heads decay as a whole (Mamba 2, Dao and Gu, 2024)."""

    num_heads: int
    head_dim: int
    """Channels of a head."""
    groups: int
    """Groups of heads, which share B and C. Several ranks may hold the same group."""
    state_size: int
    """Elements of a channel's state."""
    kernel: int
    """As of `GatedDeltaSpec`."""
    norm_eps: float
    """Epsilon of the norm of gated results."""
    norm: Literal["gate first", "norm first"] | None = "gate first"
    """Whether results are gated and then normalised, or the other way round; None: they are gated alone."""
    wide_norm: bool = False
    """Whether the norm multiplies by its weight in float32."""
    factors: tuple[float, float, float, float, float] | None = None
    """What gates, channels, B, C and time steps are multiplied by behind the first projection (muP, Yang et al.,
    2022)."""
    bias: bool = False
    """Whether the first and the last projection have a bias."""
    conv_bias: bool = True
    least_step: float = 0.0
    """Lower bound of time steps."""
    most_step: float = math.inf
    """Upper bound of time steps."""

    @property
    def norm_over(self) -> Literal["group", "width"] | None:
        """What the normalisation spans: each group by itself, or the only group, of which ranks have parts."""
        if self.norm is None:
            return None
        return "width" if self.groups == 1 else "group"

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        groups = kv_heads_of_rank(self.num_heads, self.groups, shards)
        return self.num_heads // shards * self.head_dim + 2 * groups * self.state_size

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.num_heads // shards * self.head_dim * self.state_size

    def read(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.inputs(shards) + self.num_heads // shards * (self.head_dim + 1)


@dataclass(frozen=True)
class ShortConvSpec:
    """Convolution of one layer between two gates (LFM 2, Liquid AI, 2025). Its last inputs are its only state."""

    channels: int
    kernel: int
    """As of `GatedDeltaSpec`."""
    bias: bool = False
    """Whether both projections and the convolution have a bias."""

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards

    def state(self, shards: int) -> int:  # noqa: ARG002 - the others need it
        """See `GatedDeltaSpec`: it has none."""
        return 0

    def read(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards


@dataclass(frozen=True)
class GatedLruSpec:
    """Gated linear recurrent unit of one layer (RG-LRU, De et al., 2024), behind a convolution: each channel has a
    state of one number, and gates of all channels of its block.
    """

    channels: int
    blocks: int
    """Blocks of channels, as many in each."""
    kernel: int
    """As of `GatedDeltaSpec`."""

    @property
    def width(self) -> int:
        """Channels of a block."""
        return self.channels // self.blocks

    def inputs(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.channels // shards

    def read(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return 3 * (self.channels // shards)


@dataclass(frozen=True)
class LightningSpec:
    """Lightning attention of one layer (Qin et al., 2024): linear attention whose states decay by a constant of each
    head.
    """

    decays: tuple[float, ...]
    """By how much the logarithm of what each head's state holds falls with each token, above 0."""
    head_dim: int
    """Elements of a query, a key and a value, which have equally many heads."""
    scale: float
    """What queries are multiplied by."""
    norm_eps: float
    """Epsilon of the norm of what heads read, which sigmoids then gate."""
    norm_groups: int
    """Groups of heads, each of which this norm spans."""
    rope: RopeSpec | None = None
    qk_norm_eps: float | None = None
    """Epsilon of the RMS norm of each query and key; None: there is none."""
    activated: bool = False
    """Whether queries, keys and values pass silu."""
    kernel: int = 1
    """As of `GatedDeltaSpec`: it has no convolution."""

    @property
    def num_heads(self) -> int:
        """Heads, each with a state."""
        return len(self.decays)

    def inputs(self, shards: int) -> int:  # noqa: ARG002 - the others need it
        """As of `GatedDeltaSpec`: there are none."""
        return 0

    def state(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return self.num_heads // shards * self.head_dim**2

    def read(self, shards: int) -> int:
        """As of `GatedDeltaSpec`."""
        return 3 * (self.num_heads // shards) * self.head_dim


RecurrentSpec = GatedDeltaSpec | GatedLruSpec | KimiDeltaSpec | LightningSpec | MambaSpec | Mamba2Spec | ShortConvSpec

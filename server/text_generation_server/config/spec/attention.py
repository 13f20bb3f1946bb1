"""Attention of a decoder: grouped queries or latent vectors, and what chooses positions."""

from dataclasses import dataclass
from typing import Literal

from ..rotary import QueryGrowth, RopeSpec
from .norms import NormSpec, QkNormSpec

QkvLayout = Literal["blocks", "groups", "shards"]
"""How one stored matrix holds Q, K and V: all of Q, then K, then V; or, for each K and V head, its query heads, then
k, then v; or, for each of as many shards as it was written by, Q, K and V of the shard."""

_LEAST_SHARED = 16
"""Smallest tile of the kernels."""


@dataclass(frozen=True)
class BlockIndexerSpec:
    """What chooses the blocks of positions that a token attends to (MiniMax sparse attention, 2026): the query heads of
    each KV head to their own. Small queries, one for each KV head, and one key for each position are normalised and
    rotated like those of the attention; a block counts as much as its best position.
    """

    head_dim: int
    """Elements of a query, and of a key. RoPE rotates as many of the first as of a head of the attention."""
    block: int
    """Positions of a block."""
    top_k: int
    """Blocks that a token attends to."""
    local: int
    """The newest blocks, its own one included, which are always among them."""
    norm: NormSpec


@dataclass(frozen=True)
class AttentionSpec:
    """Attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """The softmax scale."""
    rope: RopeSpec | None
    """None: attention has no rotary embedding."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNormSpec | None = None
    query_growth: QueryGrowth | None = None
    """How queries grow with their position where nothing rotates them."""
    window: int = 0
    """Sliding window: positions that a token attends to, itself included; 0 means all before it."""
    stretch: int = 0
    """A token at position p attends to positions from p // stretch * stretch on (Llama 4); 0 means all before it."""
    softcap: float = 0.0
    """Soft cap of the scores, by a hyperbolic tangent; 0 means none."""
    sinks: bool = False
    """Whether each head has an attention sink: a learned logit that takes part in the softmax without a value."""
    slopes: tuple[float, ...] = ()
    """ALiBi (Press et al., 2021): by how much the score of each head falls per position of distance."""
    clip: float = 0.0
    """Bound of queries, keys and values; 0 means none."""
    output_gate: Literal["sigmoid", "softplus"] | None = None
    """What a projection of the hidden state passes before it gates what each head reads."""
    gates_heads: bool = False
    """Whether each head has one gate; else each of its elements has one."""
    value_dim: int = 0
    """Elements of a value, fewer than of a key; 0: as many."""
    value_scale: float = 1.0
    """What values that are smaller than keys are multiplied by."""
    value_norm: bool = False
    """Whether each value is normalised as keys are, without a weight."""
    keys_are_values: bool = False
    """Whether values are what the projection of keys makes, before its norm and RoPE."""
    reads_layer: int | None = None
    """The layer before it whose keys and values it reads; None: it has its own."""
    causal_media: bool = False
    """Whether tokens of an image attend to those before them alone, also where they attend to each other elsewhere."""
    indexer: BlockIndexerSpec | None = None
    """What chooses the blocks of positions that a token attends to; None: it attends to all before it."""

    @property
    def value_size(self) -> int:
        """Elements of a value."""
        return self.value_dim or self.head_dim

    @property
    def gate_size(self) -> int:
        """Gates of a head."""
        if self.output_gate is None:
            return 0
        return 1 if self.gates_heads else self.head_dim


@dataclass(frozen=True)
class IndexerSpec:
    """What chooses the positions that a token attends to (DeepSeek-V3.2, 2025). Small queries and one key for each
    position give scores, `sum over heads of weight * relu(query . key)`, and the positions with the highest are read.
    """

    num_heads: int
    head_dim: int
    """Elements of a query, and of a key. RoPE rotates the first of them, as many as the attention itself rotates."""
    interleaved: bool
    """Whether neighbours among these are a pair, as in `RopeSpec`."""
    norm_eps: float
    """Epsilon of the layer norm of keys."""


@dataclass(frozen=True)
class LatentAttentionSpec:
    """Multi-head latent attention (MLA) of one layer (DeepSeek-V2, 2024). Keys and values of all heads are projections
    of one normalised latent vector for each position. The cache holds this vector and one rotated key that all heads
    share.
    """

    num_heads: int
    latent_dim: int
    """Elements of the latent vector."""
    rope_dim: int
    """Elements of the shared rotated key, and rotated elements of a query, which are its last ones; 0: there is no such
    key."""
    key_dim: int
    """Elements of a query, and of a projected key, that are not rotated."""
    value_dim: int
    """Elements of a value."""
    rope: RopeSpec | None
    """None: nothing is rotated (NoPE); the key that all heads share is there still."""
    norm_eps: float
    """Epsilon of the norms of the latent vector and of the low-rank query vector."""
    query_dim: int = 0
    """Elements of the normalised low-rank vector from which queries are projected; 0: they are projected from hidden
    states."""
    top_k: int = 0
    """Positions that a token attends to; 0: all before it."""
    pool: int = 0
    """Positions that are chosen together, by a weighted mean of their index keys; those of the newest pool, which is
    not full yet, are read besides. 0: each is chosen by itself."""
    indexer: IndexerSpec | None = None
    """What chooses them, from the low-rank vector and hidden states; None: the layer before it that has one."""
    query_scale: float = 1.0
    """What the low-rank vector is multiplied by after its norm."""
    latent_scale: float = 1.0
    """The same of the latent vector."""
    gates: Literal["heads", "elements"] | None = None
    """Whether a sigmoid of a projection of the hidden state gates what each head reads, or each element of it."""

    @property
    def gate_size(self) -> int:
        """Gates of a head."""
        return {None: 0, "heads": 1, "elements": self.value_dim}[self.gates]

    @property
    def index_dim(self) -> int:
        """Elements that the cache has of a position for its indexer: a key, and where keys are pooled its weights."""
        if self.indexer is None:
            return 0
        return self.indexer.head_dim * (2 if self.pool else 1)

    @property
    def shared_dim(self) -> int:
        """Elements of the shared key in the cache: kernels need one, which is of zeros where the model has none."""
        return self.rope_dim or _LEAST_SHARED

    @property
    def scale(self) -> float:
        """The softmax scale. YaRN may sharpen attention here instead of in the RoPE table."""
        scale = (self.key_dim + self.rope_dim) ** -0.5
        if self.rope is not None and self.rope.rope_type != "default" and self.rope.mscale_all_dim is not None:
            scale *= self.rope.temperature(self.rope.mscale_all_dim) ** 2
        return scale

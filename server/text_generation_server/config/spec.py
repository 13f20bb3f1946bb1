"""The spec of a decoder, as data. The builder makes layers from it, which know no family.

A family (`families/`) turns a `config.json` into a `DecoderSpec`. Counts are those of the whole model, not of a rank.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from .recurrent import Mamba2Spec, RecurrentSpec
from .rotary import QueryGrowth, RopeSpec
from .streams import StreamsSpec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
""""gelu" is exact, with the error function, "gelu_tanh" is its approximation, "relu2" is the square of relu."""

GatedActivation = Literal[
    "silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu", "silu_within_7", "silu_within_16", "silu_below_10"
]
"""The last four have formulas of their own (`text_generation_kernels/norm/activations.py`)."""

QkvLayout = Literal["blocks", "groups", "shards"]
"""How one stored matrix holds Q, K and V: all of Q, then K, then V; or, for each K and V head, its query heads, then
k, then v; or, for each of as many shards as it was written by, Q, K and V of the shard."""


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


_LEAST_SHARED = 16
"""Smallest tile of the kernels."""


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


MixerSpec = AttentionSpec | LatentAttentionSpec | RecurrentSpec
"""The sublayers in which tokens of one request read each other."""


@dataclass(frozen=True)
class DenseSpec:
    """A dense feed-forward network."""

    inner: int
    activation: Activation | GatedActivation
    gated: bool = True
    in_bias: bool = False
    out_bias: bool = False
    gate_factor: float = 1.0
    """What gates are multiplied by before the activation."""
    out_factor: float = 1.0
    """What the output is multiplied by."""
    cutoff: float | None = None
    """Gates below the mean of their row plus so many standard deviations are 0, and others are lessened by that
    (Gemma 3n); None: gates are as they are."""


@dataclass(frozen=True)
class RouteSpec:
    """The router of a mixture: which experts compute a token, and with which weights. `moe/moe_route.py` of the kernels
    has the formulas.
    """

    top_k: int
    score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    norm: Literal[0, 1, 2] = 1
    """How the top-k scores are normalised: not at all (0), by their sum (1), or by the root of their sum of squares
    (2)."""
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "top2"
    jitter: float = 0.0
    bias: bool = False
    """Whether the logits have a bias."""
    correction: bool = False
    """Whether each expert has a float32 correction, which is added to its score for the top-k alone."""
    wide: bool = False
    """Whether logits are computed in float32."""


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts (MoE)."""

    experts: int
    inner: int
    """The inner size of one expert."""
    activation: Activation | GatedActivation
    route: RouteSpec
    bias: bool = False
    """Whether both matrices of an expert have a bias."""
    shared_inner: int = 0
    """The inner size of the shared expert, which every token passes; 0: the mixture has none."""
    shared_gate: bool = False
    """Whether the sigmoid of one more logit gates the shared expert."""
    shared_activation: GatedActivation | None = None
    """That of the shared expert; None: it has that of the others."""
    gated: bool = True
    """Whether experts are gated."""
    latent: int = 0
    """Elements of the narrower state that routed experts read and write (latent mixture); 0: they read hidden states.
    The shared expert reads hidden states in any case."""
    weighs_inputs: bool = False
    """Whether the sigmoid of its logit multiplies the input of the one expert that computes a token, not its output."""
    identity: int = 0
    """Further experts to choose from, which change nothing: their output is their input."""
    expert_scales: bool = False
    """Whether the output of each expert is multiplied by a learned number."""

    @property
    def shared(self) -> DenseSpec | None:
        """The shared expert as a dense network."""
        if not self.shared_inner:
            return None
        return DenseSpec(self.shared_inner, self.shared_activation or self.activation, self.gated)


FeedForwardSpec = DenseSpec | MoeSpec


@dataclass(frozen=True)
class SkipSpec:
    """Skips of layers (Solar Pro, 2024): a layer may keep the residual stream that it reads in places with numbers, and
    may read a mix with what earlier layers kept, once for each of these places.
    """

    kept: tuple[int, ...] = ()
    """Where it keeps the stream, before it mixes."""
    mixed: tuple[int, ...] = ()
    share: float = 0.5
    """The weight of what was kept; the stream has the rest."""


@dataclass(frozen=True)
class SharedBlockSpec:
    """A call of a transformer block whose weights several layers share (Zamba 2, Glorioso et al., 2024). It reads the
    residual stream and the embedding side by side, and a matrix of the layer projects what it returns.
    """

    home: int
    """The first layer that calls the block."""
    call: int
    """The number of this call among those of all blocks."""
    attention: AttentionSpec
    """Its inputs are twice as wide as hidden states. Each call has keys and values of its own."""
    ffn: DenseSpec
    norm: NormSpec
    """Of the norm before either."""
    attention_rank: int = 0
    """Of low-rank matrices that this call adds to those of queries, keys and values; 0: it adds none."""
    ffn_rank: int = 0
    """The same of the first matrix of the network."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer: a mixer, a feed-forward network, both, or neither. Each sublayer reads the residual stream through its
    input norm and adds to it through its output norm, where it has these norms.
    """

    mixer: MixerSpec | None
    ffn: FeedForwardSpec | None
    attention_norm: NormSpec | None
    """The input norm of the mixer."""
    ffn_norm: NormSpec | None
    attention_output_norm: NormSpec | None = None
    ffn_output_norm: NormSpec | None = None
    parallel: bool = False
    """Whether both sublayers read the same residual stream; without `ffn_norm`, both through `attention_norm`."""
    scaled: bool = False
    """Whether a learned number multiplies the residual stream after the layer (Gemma 4)."""
    streams: bool = False
    """Whether it has several residual streams, as `DecoderSpec.streams` says."""
    beside: MoeSpec | None = None
    """Experts beside the dense network of a scaled layer. Both read the residual stream, and the router too, each
    through a norm; their outputs pass a norm each, are added, and pass `ffn_output_norm`."""
    ahead: MoeSpec | None = None
    """Experts that read what the dense network reads, and whose output is added behind that of the next layer
    (shortcut-connected mixture, Cai et al., 2024)."""
    state_space: Mamba2Spec | None = None
    """A state space beside attention. Both read the same input, and their outputs are added."""
    mixer_factors: tuple[float, float] = (1.0, 1.0)
    """What the outputs of attention and of the state space beside it are multiplied by."""
    skip: SkipSpec | None = None
    """What it keeps of the residual stream, and mixes into it; None: nothing."""
    shared: SharedBlockSpec | None = None
    """A block before it, whose output its mixer reads added to the residual stream; the stream itself stays as it is.
    """

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Its mixers, that of a shared block first."""
        shared = None if self.shared is None else self.shared.attention
        return tuple(mixer for mixer in (shared, self.mixer, self.state_space) if mixer is not None)

    def with_mixers(self, changed: Callable[[MixerSpec], MixerSpec]) -> "LayerSpec":
        """Returns the layer with its mixer, and that of a shared block, as `changed` makes them, which keeps kinds."""
        mixer, shared = self.mixer, self.shared
        if mixer is not None:
            mixer = changed(mixer)
        if shared is not None and isinstance(attention := changed(shared.attention), AttentionSpec):
            shared = replace(shared, attention=attention)
        return replace(self, mixer=mixer, shared=shared)

    @property
    def moe(self) -> MoeSpec | None:
        """Its mixture of experts, if it has one."""
        return self.ffn if isinstance(self.ffn, MoeSpec) else self.beside or self.ahead

    @property
    def is_whole(self) -> bool:
        """Whether it adds its last output to the residual stream itself, so that the next layer has nothing to add."""
        return self.scaled or self.streams

    @property
    def is_empty(self) -> bool:
        """Whether it has neither, and does nothing."""
        return self.mixer is None and self.ffn is None


@dataclass(frozen=True)
class EmbeddingSpec:
    """The input embedding: from token ids to the residual stream."""

    scale: float = 1.0
    scale_rounded: bool = False
    """Whether `scale` is rounded to the type of the weights before it multiplies, as Gemma does."""
    positions: int = 0
    """Rows of the table of positions, which are learned or sinusoidal; 0: the model has none."""
    first_position: int = 0
    """The row of position 0."""
    sinusoidal: bool = False
    """Whether positions are sines, then cosines, of falling frequencies, which are computed and not stored."""
    norm: NormSpec | None = None
    kept: bool = False
    """Whether layers read it beside the residual stream."""
    width: int = 0
    """Columns of the embedding, which one matrix projects to the hidden size; another one projects hidden states to the
    columns of the head. 0: both have the hidden size."""


@dataclass(frozen=True)
class PerLayerSpec:
    """Inputs of each layer (Gemma 3n, 2025): vectors of the token's id and of its embedding, which the layer multiplies
    by a gate of its hidden state, projects and adds to the residual stream.
    """

    width: int
    vocab_size: int
    """Rows of the table of vectors."""
    activation: Activation
    norm: NormSpec
    """Of the vectors that are made of the embedding, and of what a layer adds."""
    media_id: int = 0
    """The token whose vectors positions of images have."""
    outside_id: int | None = None
    """The token whose vectors ids beyond the table have; None: there are none."""


@dataclass(frozen=True)
class HeadSpec:
    """The LM head, from hidden states to logits: `cap * tanh(scale * (W h + b) / cap)`; or the head of a classifier."""

    classes: int = 0
    """Rows of W where it scores classes in place of token ids: then it is on every rank, and without what follows."""
    tied: bool = False
    """Whether W is the embedding."""
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    """Soft cap of the logits; 0 means none."""
    unit_rows: bool = False
    """Whether the rows of W are normalised to length 1."""
    unit_columns: bool = False
    """Whether its columns are, over the whole vocabulary."""


@dataclass(frozen=True)
class DecoderSpec:
    """A whole model."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    embedding: EmbeddingSpec = field(default_factory=EmbeddingSpec)
    head: HeadSpec = field(default_factory=HeadSpec)
    per_layer: PerLayerSpec | None = None
    """The inputs of layers that are scaled or have several residual streams; None: there are none."""
    streams: StreamsSpec | None = None
    """The residual streams, where there are several."""
    residual_scale: float = 1.0
    """Factor of the output of each sublayer before it is added to the residual stream."""
    image_rank: int = 0
    """Rank of the matrices beside all those of layers that tokens of images alone pass (partial LoRA, Dong et al.,
    2024); 0: there are none.
    """
    longest: int = 0
    """Positions up to which attention computes what the model does, which attends to some of more; 0: any."""
    sum_is_normalised: bool = False
    """Whether the model is post-norm, as the original transformer (Vaswani et al., 2017): the norm of the residual
    stream replaces it. The norms after a sublayer are its output norms here."""

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """The mixers of all layers, those beside attention and of shared blocks too."""
        return tuple(mixer for layer in self.layers for mixer in layer.mixers)

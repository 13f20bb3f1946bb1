"""The spec of a decoder, as data: the layers are put together from it and know no family.

A family (`families/`) turns a `config.json` into a `DecoderSpec`. Counts are those of the whole model, not of a rank.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from .recurrent import RecurrentSpec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
""""gelu" is the exact form with the error function, "gelu_tanh" its approximation, "relu2" the square of relu."""

GatedActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]
"""The last one has a formula of its own (`text_generation_kernels/norm/activations.py`)."""

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
QkvLayout = Literal["blocks", "groups"]
"""How one stored matrix holds Q, K and V: all of Q, then K, then V; or, for each K and V head, its query heads, then
k, then v."""


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
    """longrope: what each frequency is divided by in contexts up to the original length."""
    long_factors: tuple[float, ...] = ()
    """longrope: likewise beyond it."""
    rotary_dim: int = 0
    """Elements of a head that are turned, the first ones; 0 means all."""
    interleaved: bool = False
    """Elements 2i and 2i + 1 of a stored head are a pair; else i and i + rotary_dim / 2."""
    query_growth: float = 0.0
    """Queries at position p are multiplied by `1 + query_growth * ln(1 + floor(p / query_length))` (Llama 4); 0: they
    are not. For attention without biases and normalisation of queries."""
    query_length: int = 1

    def temperature(self, weight: float) -> float:
        """By what YaRN sharpens attention when positions are stretched (Peng et al., 2023), times `weight`."""
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class NormSpec:
    """Normalisation over the last dimension."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    """Root mean square, or mean and variance."""
    bias: bool = False
    wide: bool = False
    """The product with the weight is in float32 and rounded once, as Gemma and OLMo do; else the normalised value is
    rounded before."""
    one_plus: bool = False
    """The stored weight lacks 1."""
    weight: bool = True
    """False: there is neither weight nor bias."""


@dataclass(frozen=True)
class QkNormSpec:
    """Normalisation of queries and keys before (or after) they are turned."""

    norm: NormSpec
    over: Literal["head", "heads", "width"] = "head"
    """Each head with one weight for all; each head with its own weight; all heads of all ranks together."""
    after_rope: bool = False


@dataclass(frozen=True)
class AttentionSpec:
    """Attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """What products of queries and keys are multiplied by."""
    rope: RopeSpec | None
    """None: queries and keys are not turned."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNormSpec | None = None
    window: int = 0
    """Positions that a token attends to, itself included; 0 means all before it."""
    softcap: float = 0.0
    """Bound of the scores, by a hyperbolic tangent; 0 means none."""
    sinks: bool = False
    """Each head has a learned logit that takes part in the softmax and brings no value."""
    slopes: tuple[float, ...] = ()
    """ALiBi (Press et al., 2021): a head's score falls by this much with each position of distance."""
    clip: float = 0.0
    """Bound of queries, keys and values; 0 means none."""
    output_gate: bool = False
    """What a head reads is multiplied by the sigmoid of a product of the hidden state, element by element."""


@dataclass(frozen=True)
class LatentAttentionSpec:
    """Multi-head latent attention of one layer (DeepSeek-V2, 2024): keys and values of all heads are products of one
    normalised vector of a position, which is what is cached, beside one key that is turned and belongs to all heads.
    """

    num_heads: int
    latent_dim: int
    """Elements of that vector."""
    rope_dim: int
    """Elements of a query and of the key beside the vector that are turned: the last ones."""
    key_dim: int
    """Elements of a query that meet a product of the vector."""
    value_dim: int
    """Elements of a value."""
    rope: RopeSpec
    norm_eps: float
    """Of the normalisations of the vector and of what queries are made of."""
    query_dim: int = 0
    """Elements of the normalised vector that queries are products of; 0: they are products of hidden states."""

    @property
    def scale(self) -> float:
        """What products of queries and keys are multiplied by. YaRN may sharpen here instead of in the table."""
        scale = (self.key_dim + self.rope_dim) ** -0.5
        if self.rope.rope_type != "default" and self.rope.mscale_all_dim is not None:
            scale *= self.rope.temperature(self.rope.mscale_all_dim) ** 2
        return scale


MixerSpec = AttentionSpec | LatentAttentionSpec | RecurrentSpec
"""In which tokens of one request read each other."""


@dataclass(frozen=True)
class DenseSpec:
    """A feed-forward network that every token passes whole."""

    inner: int
    activation: Activation | GatedActivation
    gated: bool = True
    in_bias: bool = False
    out_bias: bool = False


@dataclass(frozen=True)
class RouteSpec:
    """Which experts compute a token, and with what weight; `text_generation_kernels/moe/moe_route.py` has the
    formulas.
    """

    top_k: int
    score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    norm: Literal[0, 1, 2] = 1
    """By which norm of the chosen scores they are divided: none, their sum, the root of the sum of squares."""
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "top2"
    jitter: float = 0.0
    bias: bool = False
    """The logits have one."""
    correction: bool = False
    """Each expert has a float32 number that is added to its score for the choice alone."""
    wide: bool = False
    """Logits are computed in float32."""


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts: networks, of which each token passes a few."""

    experts: int
    inner: int
    """Of one expert."""
    activation: Activation | GatedActivation
    route: RouteSpec
    bias: bool = False
    """Both matrices of an expert have one."""
    shared_inner: int = 0
    """Inner size of a network that every token passes besides; 0: there is none."""
    shared_gate: bool = False
    """Its result is multiplied by the sigmoid of one more logit."""
    gated: bool = True
    """Every network has a gate beside its up rows."""

    @property
    def shared(self) -> DenseSpec | None:
        """That network by itself."""
        return DenseSpec(self.shared_inner, self.activation, self.gated) if self.shared_inner else None


FeedForwardSpec = DenseSpec | MoeSpec


@dataclass(frozen=True)
class LayerSpec:
    """One layer: a mixer, a feed-forward network, both, or neither. Each part reads the running sum through its input
    norm and adds to it through its output norm, where it has them.
    """

    mixer: MixerSpec | None
    ffn: FeedForwardSpec | None
    attention_norm: NormSpec | None
    """What the mixer reads through."""
    ffn_norm: NormSpec | None
    attention_output_norm: NormSpec | None = None
    ffn_output_norm: NormSpec | None = None
    parallel: bool = False
    """Both parts read the same sum; without `ffn_norm`, through `attention_norm`."""

    @property
    def is_empty(self) -> bool:
        """Whether it has neither, and does nothing."""
        return self.mixer is None and self.ffn is None


@dataclass(frozen=True)
class EmbeddingSpec:
    """From token ids to the first sum."""

    scale: float = 1.0
    scale_rounded: bool = False
    """`scale` is rounded to the type of the weights before the product, as Gemma does."""
    positions: int = 0
    """Rows of a table of learned positions; 0: there is none."""
    first_position: int = 0
    """Row of position 0."""
    norm: NormSpec | None = None
    width: int = 0
    """Columns of the table of tokens, which one matrix brings to the hidden size; another one brings hidden states to
    the columns of the head. 0: both have the hidden size."""


@dataclass(frozen=True)
class HeadSpec:
    """From hidden states to logits: `cap * tanh(scale * (W h + b) / cap)`."""

    tied: bool = False
    """W is the embedding."""
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    """Bound of the logits; 0 means none."""
    unit_rows: bool = False
    """Rows of W are brought to length 1."""
    unit_columns: bool = False
    """Likewise its columns, over the whole vocabulary."""


@dataclass(frozen=True)
class DecoderSpec:
    """A whole model."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    embedding: EmbeddingSpec = field(default_factory=EmbeddingSpec)
    head: HeadSpec = field(default_factory=HeadSpec)
    residual_scale: float = 1.0
    """What the output of each part of a layer is multiplied by before it is added to the sum."""
    sum_is_normalised: bool = False
    """Normalisations are of the sum, and take its place: parts add to what they read, as in the original transformer
    (Vaswani et al., 2017). Those behind a part are named as its output norms."""

    @property
    def mixers(self) -> tuple[MixerSpec, ...]:
        """Those of the layers that have one."""
        return tuple(layer.mixer for layer in self.layers if layer.mixer is not None)

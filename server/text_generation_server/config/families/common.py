"""Readings of `config.json` that many families share."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..rope import parse_rope
from ..spec import (
    Activation,
    AttentionSpec,
    DecoderSpec,
    DenseSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    HeadSpec,
    LayerSpec,
    MixerSpec,
    NormSpec,
)

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""From the field's names."""


@dataclass(frozen=True)
class Heads:
    """Attention heads and their size."""

    count: int
    kv: int
    size: int

    @classmethod
    def of(cls, config: JsonObject) -> "Heads":
        """Checks that they fit each other."""
        hidden = config.integer("hidden_size")
        count = config.integer("num_attention_heads", maximum=MOST_HEADS)
        kv = config.integer("num_key_value_heads", default=count)
        if count % kv:
            raise config.error("num_key_value_heads", f"a divisor of `num_attention_heads` ({count})")
        if "head_dim" not in config and hidden % count:
            raise config.error("num_attention_heads", f"a divisor of `hidden_size` ({hidden}), or `head_dim` be given")
        size = config.integer("head_dim", default=hidden // count)
        if size % 2:
            raise config.error("head_dim", "even: rotary embedding rotates pairs")
        return cls(count, kv, size)


def activation(config: JsonObject) -> Activation:
    """That of the feed-forward network."""
    return config.choice("hidden_act", ACTIVATIONS, default="silu")


def silu_alone(config: JsonObject, key: str) -> None:
    """Raises UnsupportedModel where recurrent layers have another activation than their kernels."""
    if ACTIVATIONS.get(config.string(key, default="silu")) != "silu":
        raise UnsupportedModel(f"`{key}` in config.json must be 'silu' for this family")


def rms_norm(config: JsonObject) -> NormSpec:
    """The usual normalisation."""
    return NormSpec(config.number("rms_norm_eps", default=1e-6))


def layer_norm(config: JsonObject, bias: bool = True) -> NormSpec:
    """Mean and variance. Its smallest variance has one of three names."""
    names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    name = next((name for name in names if name in config), names[0])
    return NormSpec(config.number(name, default=1e-5), kind="layer", bias=bias)


def optional(config: JsonObject, key: str) -> float:
    """A number above 0, or 0 where the key is absent."""
    return config.number(key) if key in config else 0.0


def attention(config: JsonObject) -> AttentionSpec:
    """Grouped queries, rotary embedding, and the usual scale; one flag for all biases."""
    heads = Heads.of(config)
    bias = config.boolean("attention_bias", default=False)
    return AttentionSpec(
        heads.count,
        heads.kv,
        heads.size,
        scale=heads.size**-0.5,
        rope=parse_rope(config, heads.size),
        qkv_bias=bias,
        out_bias=bias,
    )


def with_rotary_dim(config: JsonObject, mixer: AttentionSpec) -> AttentionSpec:
    """The same where `rotary_dim` says how many elements of a head are turned, the first ones."""
    if "rotary_dim" not in config or mixer.rope is None:
        return mixer
    rotary_dim = config.integer("rotary_dim", minimum=2, maximum=mixer.head_dim)
    if rotary_dim % 2:
        raise config.error("rotary_dim", "even: rotary embedding turns pairs")
    return replace(mixer, rope=replace(mixer.rope, rotary_dim=rotary_dim))


def gated(config: JsonObject) -> DenseSpec:
    """A gated network; one flag for all biases."""
    bias = config.boolean("mlp_bias", default=False)
    return DenseSpec(config.integer("intermediate_size"), activation(config), in_bias=bias, out_bias=bias)


def plain(config: JsonObject, size_key: str, activation_key: str = "hidden_act", bias: bool = True) -> DenseSpec:
    """A network without gate, by default four times as wide as the hidden states."""
    inner = config.integer(size_key, default=4 * config.integer("hidden_size"))
    name = config.choice(activation_key, ACTIVATIONS, default="gelu")
    return DenseSpec(inner, name, gated=False, in_bias=bias, out_bias=bias)


def pre_norm_layer(config: JsonObject, mixer: MixerSpec, ffn: FeedForwardSpec) -> LayerSpec:
    """Returns a pre-norm layer: each sublayer reads the residual stream through its own norm."""
    return LayerSpec(mixer, ffn, rms_norm(config), rms_norm(config))


def sandwich_layer(mixer: AttentionSpec, ffn: FeedForwardSpec, norm: NormSpec) -> LayerSpec:
    """Returns a layer whose sublayers have an input norm and an output norm."""
    return LayerSpec(mixer, ffn, norm, norm, attention_output_norm=norm, ffn_output_norm=norm)


def with_mixer(layer: LayerSpec, **changes: Any) -> LayerSpec:
    """The layer with other values of its mixer."""
    return layer if layer.mixer is None else replace(layer, mixer=replace(layer.mixer, **changes))


def window(config: JsonObject) -> int:
    """Positions that a layer with a window attends to; 0 where there is no window."""
    return config.integer("sliding_window") if "sliding_window" in config else 0


def pattern(config: JsonObject, default: int) -> int:
    """Of so many layers the last one has no window, where `layer_types` does not say which have one."""
    return config.integer("sliding_window_pattern", default=config.integer("_sliding_window_pattern", default=default))


def by_layer_type(
    config: JsonObject, full: LayerSpec, sliding: LayerSpec, is_sliding: Callable[[int], bool]
) -> tuple[LayerSpec, ...]:
    """Layers as `layer_types` lists them, else as `is_sliding` says of each number."""
    kinds = {"full_attention": full, "sliding_attention": sliding}
    names = layer_types(config, kinds, lambda index: "sliding_attention" if is_sliding(index) else "full_attention")
    return tuple(kinds[name] for name in names)


def layer_types(config: JsonObject, known: Collection[str], default: Callable[[int], str]) -> tuple[str, ...]:
    """The type of each layer, one of `known`: as `layer_types` lists them, else as `default` says of each number."""
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    if "layer_types" not in config:
        return tuple(default(index) for index in range(count))
    names = tuple(OLDER_TYPES.get(name, name) for name in config.strings("layer_types"))
    if len(names) != count or any(name not in known for name in names):
        raise config.error("layer_types", f"a list of {count} names out of {', '.join(known)}")
    return names


def decoder(
    config: JsonObject,
    layers: LayerSpec | tuple[LayerSpec, ...],
    final_norm: NormSpec | None = None,
    embedding: EmbeddingSpec | None = None,
    head: HeadSpec | None = None,
    residual_scale: float = 1.0,
) -> DecoderSpec:
    """A model of `layers`, or of as many layers of one kind as the configuration says."""
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    return DecoderSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        layers=(layers,) * count if isinstance(layers, LayerSpec) else layers,
        final_norm=final_norm or rms_norm(config),
        embedding=embedding or EmbeddingSpec(),
        head=head or HeadSpec(tied=config.boolean("tie_word_embeddings", default=False)),
        residual_scale=residual_scale,
    )


OLDER_TYPES: Mapping[str, str] = {"mamba": "linear_attention", "attention": "full_attention"}
"""Names of types of layers in older files."""
GPT_KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
"""From the usual names of keys to those of GPT-2 and its kin."""
MOST_LAYERS = 10_000
"""A list of layers is made: a hostile number must not fill the memory."""
MOST_HEADS = 10_000
"""Likewise of heads, each of which may have a slope."""
MOST_STATE, MOST_KERNEL = 256, 4
"""Largest state of a head, and largest convolution, that kernels of recurrent layers have."""

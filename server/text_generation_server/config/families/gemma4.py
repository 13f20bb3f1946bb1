"""Gemma 4: heads of two sizes, layers that read the keys and values of others, inputs of each layer, experts beside a
dense network, and a factor of the residual stream behind each layer.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import (
    AttentionSpec,
    DecoderSpec,
    DenseSpec,
    EmbeddingSpec,
    HeadSpec,
    LayerSpec,
    MoeSpec,
    NormSpec,
    PerLayerSpec,
    QkNormSpec,
    RouteSpec,
)
from .common import (
    ACTIVATIONS,
    MOST_HEADS,
    MOST_LAYERS,
    decoder,
    layer_types,
    optional,
    pattern,
    rms_norm,
    sandwich_layer,
)
from .experts import MOST_EXPERTS
from .family import Family

_FULL, _SLIDING = "full_attention", "sliding_attention"
_UNREAD_OF_SHARED = ("k_proj", "v_proj", "k_norm", "v_norm")


def _gemma4(config: JsonObject) -> DecoderSpec:
    if config.string("use_bidirectional_attention", default="vision") != "vision":
        raise UnsupportedModel("`use_bidirectional_attention` in config.json must be null or 'vision' for this family")
    norm = _norm(config)
    kinds = _kinds(config)
    layers = tuple(_layer(config, norm, kinds, index) for index in range(len(kinds)))
    tied = config.boolean("tie_word_embeddings", default=True)
    model = decoder(
        config,
        layers,
        norm,
        EmbeddingSpec(scale=config.integer("hidden_size") ** 0.5, scale_rounded=True),
        HeadSpec(tied=tied, softcap=optional(config, "final_logit_softcapping")),
    )
    return replace(model, per_layer=_per_layer(config, norm))


def _norm(config: JsonObject) -> NormSpec:
    return replace(rms_norm(config), wide=True)


def _kinds(config: JsonObject) -> tuple[str, ...]:
    """The type of each layer; the last one has no window, whatever the file says."""
    whole = pattern(config, 6)
    kinds = layer_types(config, (_FULL, _SLIDING), lambda index: _FULL if (index + 1) % whole == 0 else _SLIDING)
    return (*kinds[:-1], _FULL)


def own_caches(config: JsonObject) -> int:
    """How many layers have keys and values of their own, the first ones."""
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    return count - config.integer("num_kv_shared_layers", default=0, minimum=0, maximum=count - 1)


def source_of(config: JsonObject, kinds: tuple[str, ...], index: int) -> int | None:
    """The layer whose keys and values layer `index` reads: the last own one of its kind. None: it has its own."""
    if index < (own := own_caches(config)):
        return None
    sources = [other for other in range(own) if kinds[other] == kinds[index]]
    if not sources:
        raise config.error("num_kv_shared_layers", f"such that a layer of type {kinds[index]} has its own cache")
    return sources[-1]


def _layer(config: JsonObject, norm: NormSpec, kinds: tuple[str, ...], index: int) -> LayerSpec:
    mixer = _attention(config, norm, index, kinds[index])
    doubled = False
    if (source := source_of(config, kinds, index)) is not None:
        mixer = replace(mixer, reads_layer=source, value_norm=False, keys_are_values=False)
        doubled = config.boolean("use_double_wide_mlp", default=False)
    inner = config.integer("intermediate_size") * (2 if doubled else 1)
    ffn = DenseSpec(inner, config.choice("hidden_activation", ACTIVATIONS))
    beside = _experts(config) if config.boolean("enable_moe_block", default=False) else None
    return replace(sandwich_layer(mixer, ffn, norm), scaled=True, beside=beside)


def _attention(config: JsonObject, norm: NormSpec, index: int, kind: str) -> AttentionSpec:
    count = config.integer("num_attention_heads", maximum=MOST_HEADS)
    values = config.boolean("attention_k_eq_v", default=False) and kind == _FULL
    size, kv = _heads(config, index, kind, values)
    if count % kv:
        raise config.error("num_key_value_heads", f"a divisor of `num_attention_heads` ({count}), here {kv}")
    bias = config.boolean("attention_bias", default=False)
    return AttentionSpec(
        count,
        kv,
        size,
        scale=1.0,
        # The class does not read how much of a head is rotated but for "proportional".
        rope=replace(parse_rope(config, size, layer_type=kind), rotary_dim=0),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=QkNormSpec(norm),
        window=config.integer("sliding_window") if kind == _SLIDING else 0,
        causal_media=kind == _FULL,
        value_norm=True,
        keys_are_values=values,
    )


def _heads(config: JsonObject, index: int, kind: str, keys_are_values: bool) -> tuple[int, int]:
    """Size and number of the key heads of a layer: Transformers 5.24 writes them by layer, published files by type."""
    size, kv = config.integer("head_dim"), config.integer("num_key_value_heads")
    if "per_layer_config" in config:
        own = config.child("per_layer_config").child(str(index))
        return own.integer("head_dim", default=size), own.integer("num_key_value_heads", default=kv)
    if kind == _SLIDING:
        return size, kv
    size = config.integer("global_head_dim", default=512)
    return size, config.integer("num_global_key_value_heads", default=kv) if keys_are_values else kv


def _experts(config: JsonObject) -> MoeSpec:
    experts = config.integer("num_experts", maximum=MOST_EXPERTS)
    route = RouteSpec(config.integer("top_k_experts", maximum=experts))
    activation = config.choice("hidden_activation", ACTIVATIONS)
    return MoeSpec(experts, config.integer("moe_intermediate_size"), activation, route, expert_scales=True)


def _per_layer(config: JsonObject, norm: NormSpec) -> PerLayerSpec | None:
    if not (width := config.integer("hidden_size_per_layer_input", minimum=0)):
        return None
    rows, vocabulary = config.integer("vocab_size_per_layer_input"), config.integer("vocab_size")
    if rows < vocabulary:
        raise config.error("vocab_size_per_layer_input", f"at least `vocab_size` ({vocabulary})")
    media_id = config.integer("pad_token_id", default=0, minimum=0, maximum=vocabulary - 1)
    return PerLayerSpec(width, rows, config.choice("hidden_activation", ACTIVATIONS), norm, media_id)


def unread_of_shared(config: JsonObject) -> tuple[str, ...]:
    """Patterns of tensors that published files have, and that layers which read another cache do not need."""
    shared = range(own_caches(config), config.integer("num_hidden_layers"))
    return tuple(f"*layers.{index}.self_attn.{each}.*" for index in shared for each in _UNREAD_OF_SHARED)


def _names(config: JsonObject) -> TensorNames:
    return TensorNames(
        ffn_norm="pre_feedforward_layernorm",
        router="router.proj",
        expert_gate="experts.{expert}.gate_proj",
        expert_up="experts.{expert}.up_proj",
        expert_down="experts.{expert}.down_proj",
        experts_stack=("experts.gate_up_proj", "experts.down_proj"),
        ignored=unread_of_shared(config),
    )


GEMMA4 = Family(
    "Gemma 4 (text)",
    _gemma4,
    _names,
    {
        "head_dim": 256,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    },
    unread=("mlp_bias",),
)

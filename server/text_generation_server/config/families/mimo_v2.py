"""MiMo V2: values smaller than keys, twice the key heads and sinks in layers with a window, RoPE by type of layer, and
the experts of DeepSeek V3 without a shared one.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, RopeSpec
from .common import MOST_HEADS, decoder, gated, layer_types, pre_norm_layer
from .deepseek import sigmoid_routed
from .experts import mixed_by_type
from .family import Family

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _mimo_v2(config: JsonObject) -> DecoderSpec:
    if config.string("attention_projection_layout", default="split") != "split":
        raise UnsupportedModel(
            "`attention_projection_layout` in config.json must be 'split': queries, keys and values in one tensor, cut "
            "by shards, are not implemented (MiMo V2.5)"
        )
    experts = replace(sigmoid_routed(config), shared_inner=0)
    kinds, is_mixed = _kinds(config), mixed_by_type(config)
    layers = tuple(
        pre_norm_layer(config, _attention(config, kind), experts if is_mixed(index) else gated(config))
        for index, kind in enumerate(kinds)
    )
    return decoder(config, layers)


def _kinds(config: JsonObject) -> tuple[str, ...]:
    count = config.integer("num_hidden_layers")
    listed: tuple[int, ...] = ()
    if "hybrid_layer_pattern" in config and "layer_types" not in config:
        listed = config.integers("hybrid_layer_pattern", count, 1)

    def kind(index: int) -> str:
        is_full = not listed[index] if listed else index == 0 or (index + 1) % 6 == 0
        return _FULL if is_full else _SLIDING

    return layer_types(config, (_FULL, _SLIDING), kind)


def _attention(config: JsonObject, kind: str) -> AttentionSpec:
    heads, own = config.integer("num_attention_heads", maximum=MOST_HEADS), config.integer("num_key_value_heads")
    kv = own if kind == _FULL else config.integer("swa_num_key_value_heads", default=2 * own)
    if heads % kv:
        raise config.error("num_key_value_heads", f"such that {kv} heads of layers of type {kind} divide {heads}")
    size, values = config.integer("head_dim"), config.integer("v_head_dim")
    if values > size:
        raise config.error("v_head_dim", f"at most `head_dim` ({size})")
    for key, wanted in (("add_swa_attention_sink_bias", True), ("add_full_attention_sink_bias", False)):
        if config.boolean(key, default=wanted) != wanted:
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    return AttentionSpec(
        heads,
        kv,
        size,
        scale=size**-0.5,
        rope=_rope(config, size, kind),
        qkv_bias=config.boolean("attention_bias", default=False),
        window=_window(config) if kind == _SLIDING else 0,
        sinks=kind == _SLIDING,
        value_dim=values,
        value_scale=config.number("attention_value_scale"),
    )


def _window(config: JsonObject) -> int:
    """The code that the model was made for counts the positions before a token."""
    if "sliding_window_size" in config:
        return config.integer("sliding_window_size") + 1
    return config.integer("sliding_window")


def _rope(config: JsonObject, size: int, kind: str) -> RopeSpec:
    key = "rope_theta" if kind == _FULL else "swa_rope_theta"
    return parse_rope(config, size, layer_type=kind, theta_key=key)


MIMO_V2 = Family(
    "MiMo V2",
    _mimo_v2,
    TensorNames(sinks="self_attn.attention_sink_bias", ignored=("model.mtp.*",)),
    {
        "rms_norm_eps": 1e-5,
        "head_dim": 192,
        "v_head_dim": 128,
        "attention_value_scale": 0.707,
        "num_key_value_heads": 4,
        "sliding_window": 129,
        "rope_theta": 5e6,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.334,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "max_position_embeddings": 131072,
    },
    older={"rms_norm_eps": "layernorm_epsilon"},
    unread=("mlp_bias", "n_shared_experts"),
)

"""MiMo V2: values smaller than keys, twice the key heads and sinks in layers with a window, RoPE by type of layer, and
the experts of DeepSeek V3 without a shared one.
"""

from collections.abc import Callable
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import AttentionSpec, DecoderSpec
from .common import MOST_HEADS, decoder, gated, layer_types, pre_norm_layer
from .deepseek import sigmoid_routed
from .experts import mixed_by_type
from .family import Family

_FULL, _SLIDING = "full_attention", "sliding_attention"
_TOWER = "vision_config"
_SAME = {
    "swa_head_dim": "head_dim",
    "swa_num_attention_heads": "num_attention_heads",
    "swa_v_head_dim": "v_head_dim",
}
"""Sizes that layers with and without a window have alike."""


def _mimo_v2(config: JsonObject) -> DecoderSpec:
    for key, wanted in _SAME.items():
        if key in config and config.integer(key) != config.integer(wanted):
            raise UnsupportedModel(f"`{key}` in config.json must be `{wanted}` ({config.integer(wanted)})")
    experts = replace(sigmoid_routed(config), shared_inner=0)
    kinds, is_mixed = _kinds(config), _mixed(config)
    layers = tuple(
        pre_norm_layer(config, _attention(config, kind), experts if is_mixed(index) else gated(config))
        for index, kind in enumerate(kinds)
    )
    return decoder(config, layers)


def _mixed(config: JsonObject) -> Callable[[int], bool]:
    """Whether layers have experts."""
    key = "moe_layer_freq"
    if key not in config or "mlp_layer_types" in config:
        return mixed_by_type(config)
    listed = config.integers(key, config.integer("num_hidden_layers"), 1)
    return lambda index: listed[index] == 1


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
    if _is_fused(config) and kv % own:
        raise config.error("swa_num_key_value_heads", f"a multiple of `num_key_value_heads` ({own})")
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


def _is_fused(config: JsonObject) -> bool:
    """Whether one matrix has queries, keys and values, as so many shards wrote it as full attention has key heads."""
    return config.choice("attention_projection_layout", {"split": False, "fused_qkv": True}, default="split")


def _names(config: JsonObject) -> TensorNames:
    of_towers = ("visual.*", "audio_encoder.*", "speech_embeddings.*") if _TOWER in config else ()
    names = TensorNames(sinks="self_attn.attention_sink_bias", ignored=("model.mtp.*", *of_towers))
    if not _is_fused(config):
        return names
    shards = config.integer("num_key_value_heads")
    return replace(names, qkv="self_attn.qkv_proj", qkv_layout="shards", qkv_shards=shards)


MIMO_V2 = Family(
    "MiMo V2",
    _mimo_v2,
    _names,
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
    tower=_TOWER,
)

"""EXAONE 3, which is Llama with other names; EXAONE 4, which normalises outputs and has RoPE only in layers with a
window; K-EXAONE, which has the attention of version 4 and the experts of DeepSeek V3.
"""

from dataclasses import replace
from functools import partial

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, QkNormSpec
from .common import (
    MOST_LAYERS,
    attention,
    by_layer_type,
    decoder,
    gated,
    pre_norm_layer,
    rms_norm,
    window,
    with_mixer,
)
from .deepseek import sigmoid_routed
from .experts import mixed_by_type, shared_expert_names
from .family import Family
from .llama import llama_decoder

_EXAONE3_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="wte",
    final_norm="ln_f",
    layer="h.{}.",
    attention_norm="ln_1",
    ffn_norm="ln_2",
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    out="attn.attention.out_proj",
    gate="mlp.c_fc_0",
    up="mlp.c_fc_1",
    down="mlp.c_proj",
)
_EXAONE3_KEYS = {
    "hidden_act": "activation_function",
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
}
_EXAONE4_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}


def _exaone4(config: JsonObject) -> DecoderSpec:
    norm = rms_norm(config)
    return decoder(config, _layers(config, LayerSpec(_attention(config), gated(config), None, None, norm, norm)))


def _exaone_moe(config: JsonObject) -> DecoderSpec:
    layers = _layers(config, pre_norm_layer(config, _attention(config), gated(config)))
    experts, is_mixed = sigmoid_routed(config), mixed_by_type(config)
    mixed = (replace(layer, ffn=experts) if is_mixed(index) else layer for index, layer in enumerate(layers))
    return decoder(config, tuple(mixed))


def _attention(config: JsonObject) -> AttentionSpec:
    return replace(attention(config), qk_norm=QkNormSpec(rms_norm(config)), qkv_bias=False, out_bias=False)


def _layers(config: JsonObject, layer: LayerSpec) -> tuple[LayerSpec, ...]:
    """With a window and RoPE, or with neither. Without any window, all layers have RoPE."""
    if "sliding_window" not in config:
        return (layer,) * config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    sliding, full = with_mixer(layer, window=window(config)), with_mixer(layer, rope=None)
    return by_layer_type(config, full, sliding, partial(_has_window, config))


def _exaone_moe_names(config: JsonObject) -> TensorNames:
    names = shared_expert_names(0)(config)
    return replace(names, router_correction="mlp.e_score_correction_bias", ignored=(*names.ignored, "mtp.*"))


def _has_window(config: JsonObject, index: int) -> bool:
    """All layers of a pattern but its last one. The file has its length, or letters: L for local, G for global."""
    key = "sliding_window_pattern"
    pattern = config.plain().get(key)
    if not isinstance(pattern, str):
        return (index + 1) % config.integer(key) != 0
    if not pattern or set(pattern) - {"L", "G"}:
        raise config.error(key, "a number of layers, or letters L and G such as LLLG")
    return pattern[index % len(pattern)] == "L"


EXAONE3 = Family(
    "EXAONE 3",
    llama_decoder,
    _EXAONE3_NAMES,
    {"tie_word_embeddings": True},
    aliases=_EXAONE3_KEYS,
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)
EXAONE4 = Family(
    "EXAONE 4",
    _exaone4,
    defaults=_EXAONE4_DEFAULTS,
    unread=("mlp_bias", "partial_rotary_factor"),
)
EXAONE_MOE = Family(
    "EXAONE MoE",
    _exaone_moe,
    _exaone_moe_names,
    {
        **_EXAONE4_DEFAULTS,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
    },
    aliases={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
    unread=("mlp_bias", "partial_rotary_factor", "scoring_func"),
)

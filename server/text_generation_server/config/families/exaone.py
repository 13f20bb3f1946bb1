"""EXAONE 3, which is Llama with other names, and EXAONE 4, which normalises outputs and has RoPE only in layers with a
window.
"""

from dataclasses import replace
from functools import partial

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, LayerSpec, QkNormSpec
from .common import attention, by_layer_type, decoder, gated, rms_norm, window
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
    mixer = replace(attention(config), qk_norm=QkNormSpec(rms_norm(config)), qkv_bias=False, out_bias=False)
    norm = rms_norm(config)
    layer = LayerSpec(mixer, gated(config), None, None, norm, norm)
    if "sliding_window" not in config:
        # All of its layers attend to everything, and all of them rotate.
        return decoder(config, layer)
    sliding = replace(layer, mixer=replace(mixer, window=window(config)))
    full = replace(layer, mixer=replace(mixer, rope=None))
    return decoder(config, by_layer_type(config, full, sliding, partial(_has_window, config)))


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

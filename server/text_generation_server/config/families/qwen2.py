"""Qwen 2, 2.5 and 3: biases of Q, K and V alone, or QK norm; a sliding window from some layer on. MiMo 7B is Qwen 2."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, QkNormSpec
from .common import attention, by_layer_type, decoder, gated, pre_norm_layer, rms_norm, window
from .family import Family

_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def qwen2_attention(config: JsonObject) -> AttentionSpec:
    """Without window."""
    return replace(attention(config), qkv_bias=True, out_bias=False)


def qwen3_attention(config: JsonObject) -> AttentionSpec:
    """Without window."""
    return replace(attention(config), qk_norm=QkNormSpec(rms_norm(config)))


def _decoder(config: JsonObject, mixer: AttentionSpec) -> DecoderSpec:
    full = pre_norm_layer(config, mixer, gated(config))
    has_window = config.boolean("use_sliding_window", default=False) and "sliding_window" in config
    sliding = replace(full, mixer=replace(mixer, window=window(config))) if has_window else full
    first = config.integer("max_window_layers", default=28, minimum=0)
    return decoder(config, by_layer_type(config, full, sliding, lambda index: has_window and index >= first))


QWEN2 = Family(
    "Qwen 2 and 2.5",
    lambda config: _decoder(config, qwen2_attention(config)),
    defaults=_DEFAULTS,
    unread=("mlp_bias", "partial_rotary_factor"),
)
QWEN3 = Family(
    "Qwen 3",
    lambda config: _decoder(config, qwen3_attention(config)),
    defaults={**_DEFAULTS, "head_dim": 128},
    unread=("mlp_bias", "partial_rotary_factor"),
)
MIMO = replace(
    QWEN2,
    title="MiMo 7B",
    # Behind the last layer, checkpoints have some that guess further tokens.
    names=TensorNames(ignored=(*TensorNames().ignored, "model.mtp_layers.*")),
)

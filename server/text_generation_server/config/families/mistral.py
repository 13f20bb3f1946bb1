"""Mistral and Ministral: sliding-window attention, in all layers or in some."""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec
from .common import attention, by_layer_type, decoder, gated, pre_norm_layer, window, with_mixer
from .family import Family

_DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}


def _mistral(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), window=window(config))
    return decoder(config, pre_norm_layer(config, mixer, gated(config)))


def _ministral(config: JsonObject) -> DecoderSpec:
    full = pre_norm_layer(config, attention(config), gated(config))
    sliding = with_mixer(full, window=window(config))
    has_window = "sliding_window" in config
    return decoder(config, by_layer_type(config, full, sliding, lambda _: has_window))


MISTRAL = Family(
    "Mistral",
    _mistral,
    defaults={**_DEFAULTS, "head_dim": None},
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)
MINISTRAL = Family(
    "Ministral",
    _ministral,
    defaults=_DEFAULTS,
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)

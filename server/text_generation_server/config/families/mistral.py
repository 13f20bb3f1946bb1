"""Mistral and Ministral: sliding-window attention, in all layers or in some. Queries of version 3 grow with their
position.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..params import MARK
from ..rope import with_query_scale
from ..spec import DecoderSpec
from .common import attention, by_layer_type, decoder, gated, pre_norm_layer, window, with_mixer
from .family import Family
from .mistral_names import MISTRAL_NAMES

_DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}


_ROPE_OF_3 = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def _mistral(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), window=window(config))
    if mixer.rope is not None:
        # Pairs that turn together lie beside each other in Mistral's own files.
        rope = replace(with_query_scale(config, mixer.rope), interleaved=MARK in config)
        mixer = replace(mixer, rope=rope)
    return decoder(config, pre_norm_layer(config, mixer, gated(config)))


def _ministral(config: JsonObject) -> DecoderSpec:
    full = pre_norm_layer(config, attention(config), gated(config))
    sliding = with_mixer(full, window=window(config))
    has_window = "sliding_window" in config
    return decoder(config, by_layer_type(config, full, sliding, lambda _: has_window))


MISTRAL = Family(
    "Mistral",
    _mistral,
    lambda config: MISTRAL_NAMES if MARK in config else TensorNames(),
    defaults={**_DEFAULTS, "head_dim": None},
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)
MINISTRAL = Family(
    "Ministral",
    _ministral,
    defaults=_DEFAULTS,
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)
MINISTRAL3 = Family(
    "Ministral 3",
    _mistral,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 262144,
        "rope_scaling": _ROPE_OF_3,
    },
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)

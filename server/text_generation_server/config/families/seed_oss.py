"""Seed-OSS: biases of Q, K and V apart from that of the output."""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec
from .common import attention, decoder, gated, pre_norm_layer
from .family import Family


def _seed_oss(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), out_bias=config.boolean("attention_out_bias", default=False))
    return decoder(config, pre_norm_layer(config, mixer, gated(config)))


SEED_OSS = Family(
    "Seed-OSS",
    _seed_oss,
    defaults={
        "attention_bias": True,
        "attention_out_bias": False,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 524288,
    },
    unread=("partial_rotary_factor",),
)

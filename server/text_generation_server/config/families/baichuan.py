"""Baichuan 1 and 2: one matrix for Q, K and V; the larger models have ALiBi, which only their missing key tells."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, HeadSpec
from .alibi import slopes
from .common import attention, decoder, gated, pre_norm_layer
from .family import Family

_VOCABULARY_OF_2 = 125696
"""Version 2 has another head, and no other difference in its configuration."""


def _baichuan(config: JsonObject) -> DecoderSpec:
    mixer = attention(config)
    if "max_position_embeddings" not in config:
        mixer = replace(mixer, rope=None, slopes=slopes(mixer.num_heads))
    head = HeadSpec(
        tied=config.boolean("tie_word_embeddings", default=False),
        unit_rows=config.integer("vocab_size") == _VOCABULARY_OF_2,
    )
    return decoder(config, pre_norm_layer(config, mixer, gated(config)), head=head)


BAICHUAN = Family(
    "Baichuan 1 and 2",
    _baichuan,
    TensorNames(qkv="self_attn.W_pack"),
    longest="model_max_length",
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)

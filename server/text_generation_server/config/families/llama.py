"""Llama 1 to 3.x."""

from ..json_object import JsonObject
from ..spec import DecoderSpec
from .common import attention, decoder, gated, pre_norm_layer
from .family import Family


def llama_decoder(config: JsonObject) -> DecoderSpec:
    """Layers that are all alike."""
    return decoder(config, pre_norm_layer(config, attention(config), gated(config)))


LLAMA = Family("Llama", llama_decoder, unread=("partial_rotary_factor",))

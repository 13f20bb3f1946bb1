"""Llama 1 to 3.x, and models that are Llama under another name: TeleChat 3 and IQuest-Coder."""

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..spec import DecoderSpec
from .common import attention, decoder, gated, pre_norm_layer
from .family import Family


def llama_decoder(config: JsonObject) -> DecoderSpec:
    """Layers that are all alike."""
    return decoder(config, pre_norm_layer(config, attention(config), gated(config)))


def _iquest_coder(config: JsonObject) -> DecoderSpec:
    """Published models use neither of these."""
    if "clip_qkv" in config or config.boolean("use_sliding_window", default=False):
        raise UnsupportedModel("`clip_qkv` and `use_sliding_window` in config.json are not implemented for this family")
    return llama_decoder(config)


LLAMA = Family("Llama", llama_decoder, unread=("partial_rotary_factor",))
TELECHAT3 = Family("TeleChat 3", llama_decoder, unread=("partial_rotary_factor",))
IQUEST_CODER = Family(
    "IQuest-Coder",
    _iquest_coder,
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    unread=("partial_rotary_factor",),
)

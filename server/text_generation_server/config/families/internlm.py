"""InternLM 1, 2 and 3: Llama with other biases, and in version 2 with other names and a fused matrix. XComposer 2 is
version 2 with matrices that tokens of images pass.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec
from .common import attention, decoder, gated, pre_norm_layer
from .family import Family

_INTERNLM2_NAMES = TensorNames(
    embedding="tok_embeddings",
    head="output",
    attention_norm="attention_norm",
    ffn_norm="ffn_norm",
    qkv="attention.wqkv",
    qkv_layout="groups",
    out="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)
_IMAGE_RANK = 256
"""Of the matrices of XComposer 2 that tokens of images pass."""
_END_OF_TURN = 92542
"""Its `[UNUSED_TOKEN_145]`, which no file says to end a text."""


def _internlm(config: JsonObject) -> DecoderSpec:
    bias = config.boolean("bias", default=True)
    mixer = replace(attention(config), qkv_bias=bias, out_bias=bias)
    return decoder(config, pre_norm_layer(config, mixer, gated(config)))


def _xcomposer2(config: JsonObject) -> DecoderSpec:
    return replace(_internlm(config), image_rank=_IMAGE_RANK)


def _internlm3(config: JsonObject) -> DecoderSpec:
    bias = config.boolean("bias", default=False)
    mixer = replace(attention(config), qkv_bias=config.boolean("qkv_bias", default=False), out_bias=bias)
    ffn = replace(gated(config), in_bias=bias, out_bias=bias)
    return decoder(config, pre_norm_layer(config, mixer, ffn))


INTERNLM = Family(
    "InternLM",
    _internlm,
    unread=("mlp_bias", "partial_rotary_factor"),
)
INTERNLM2 = Family(
    "InternLM 2",
    _internlm,
    _INTERNLM2_NAMES,
    unread=("mlp_bias", "partial_rotary_factor"),
)
XCOMPOSER2 = replace(
    INTERNLM2,
    title="InternLM-XComposer 2",
    decoder=_xcomposer2,
    names=replace(_INTERNLM2_NAMES, ignored=("*vision*", "*.Plora_?.weight", "plora_*")),
    tower="img_size",
    ends=(_END_OF_TURN,),
)
INTERNLM3 = Family(
    "InternLM 3",
    _internlm3,
    unread=("mlp_bias", "partial_rotary_factor"),
)

"""Phi 3, 3.5 and 4: fused matrices, a window, and longrope."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec
from .common import attention, decoder, gated, pre_norm_layer, window
from .family import Family


def _phi3(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), window=window(config))
    return decoder(config, pre_norm_layer(config, mixer, gated(config)))


PHI3 = Family(
    "Phi 3, 3.5 and 4",
    _phi3,
    TensorNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    unread=("attention_bias", "mlp_bias"),
)

"""Phi 1, 1.5 and 2: a feed-forward network without a gate, parallel to attention, and a bias of the head."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, HeadSpec, LayerSpec
from .common import attention, decoder, layer_norm, plain
from .family import Family


def _phi(config: JsonObject) -> DecoderSpec:
    if config.boolean("qk_layernorm", default=False):
        raise UnsupportedModel("`qk_layernorm` in config.json must be false for this family")
    norm = layer_norm(config)
    mixer = replace(attention(config), qkv_bias=True, out_bias=True)
    layer = LayerSpec(mixer, plain(config, "intermediate_size"), norm, None, parallel=True)
    head = HeadSpec(tied=config.boolean("tie_word_embeddings", default=False), bias=True)
    return decoder(config, layer, norm, head=head)


PHI = Family(
    "Phi 1 and 2",
    _phi,
    TensorNames(final_norm="final_layernorm", out="self_attn.dense", up="mlp.fc1", down="mlp.fc2"),
    {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
)

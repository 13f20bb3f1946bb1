"""StarCoder 2, StableLM, and Phi 1 and 2: layer norms around rotated attention."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, HeadSpec, LayerSpec, QkNormSpec
from .common import attention, decoder, gated, layer_norm, plain, window
from .family import Family


def _starcoder2(config: JsonObject) -> DecoderSpec:
    norm, bias = layer_norm(config), config.boolean("use_bias", default=True)
    mixer = replace(attention(config), qkv_bias=bias, out_bias=bias, window=window(config))
    return decoder(config, LayerSpec(mixer, plain(config, "intermediate_size", bias=bias), norm, norm), norm)


def _stablelm(config: JsonObject) -> DecoderSpec:
    norm, is_parallel = layer_norm(config), config.boolean("use_parallel_residual", default=False)
    mixer = replace(attention(config), qkv_bias=config.boolean("use_qkv_bias", default=False), out_bias=False)
    if config.boolean("qk_layernorm", default=False):
        mixer = replace(mixer, qk_norm=QkNormSpec(layer_norm(config, bias=False), over="heads"))
    layer = LayerSpec(mixer, gated(config), norm, None if is_parallel else norm, parallel=is_parallel)
    return decoder(config, layer, norm)


def _phi(config: JsonObject) -> DecoderSpec:
    if config.boolean("qk_layernorm", default=False):
        raise UnsupportedModel("`qk_layernorm` in config.json must be false for this family")
    norm = layer_norm(config)
    mixer = replace(attention(config), qkv_bias=True, out_bias=True)
    layer = LayerSpec(mixer, plain(config, "intermediate_size"), norm, None, parallel=True)
    head = HeadSpec(tied=config.boolean("tie_word_embeddings", default=False), bias=True)
    return decoder(config, layer, norm, head=head)


STARCODER2 = Family(
    "StarCoder 2",
    _starcoder2,
    TensorNames(up="mlp.c_fc", down="mlp.c_proj"),
    {
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "use_bias": True,
    },
)
STABLELM = Family(
    "StableLM",
    _stablelm,
    TensorNames(q_norm="self_attn.q_layernorm.norms.{head}", k_norm="self_attn.k_layernorm.norms.{head}"),
    {
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "num_key_value_heads": 32,
        "rope_pct": 0.25,
    },
    aliases={"layer_norm_eps": "norm_eps", "partial_rotary_factor": "rope_pct"},
)
PHI = Family(
    "Phi 1 and 2",
    _phi,
    TensorNames(final_norm="final_layernorm", out="self_attn.dense", up="mlp.fc1", down="mlp.fc2"),
    {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
)

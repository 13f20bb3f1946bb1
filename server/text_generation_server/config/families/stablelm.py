"""StableLM: layer norms and a gated feed-forward network, after attention or parallel to it."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, LayerSpec, QkNormSpec
from .common import attention, decoder, gated, layer_norm
from .family import Family


def _stablelm(config: JsonObject) -> DecoderSpec:
    norm, is_parallel = layer_norm(config), config.boolean("use_parallel_residual", default=False)
    mixer = replace(attention(config), qkv_bias=config.boolean("use_qkv_bias", default=False), out_bias=False)
    if config.boolean("qk_layernorm", default=False):
        mixer = replace(mixer, qk_norm=QkNormSpec(layer_norm(config, bias=False), over="heads"))
    layer = LayerSpec(mixer, gated(config), norm, None if is_parallel else norm, parallel=is_parallel)
    return decoder(config, layer, norm)


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
    unread=("head_dim", "mlp_bias"),
)

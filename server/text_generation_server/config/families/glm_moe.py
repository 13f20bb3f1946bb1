"""GLM 4.5 to 4.7: sigmoid routing with a correction, a shared network, and dense layers at the front; the
small ones have latent attention. Solar Open has no dense layers.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec, QkNormSpec
from .common import attention, decoder, gated, pre_norm_layer, rms_norm
from .deepseek import sigmoid_routed
from .experts import by_number, mixed_by_type, shared_expert_names
from .family import Family
from .latent import latent_attention


def _glm(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), out_bias=False)
    if config.boolean("use_qk_norm", default=False):
        mixer = replace(mixer, qk_norm=QkNormSpec(rms_norm(config)))
    dense = pre_norm_layer(config, mixer, gated(config))
    first = config.integer("first_k_dense_replace", default=1, minimum=0)
    return decoder(
        config, by_number(config, dense, replace(dense, ffn=sigmoid_routed(config)), lambda index: index >= first)
    )


def _glm_lite(config: JsonObject) -> DecoderSpec:
    mixer = latent_attention(config, config.boolean("rope_interleave", default=True))
    dense = pre_norm_layer(config, mixer, gated(config))
    mixed = replace(dense, ffn=sigmoid_routed(config))
    return decoder(config, by_number(config, dense, mixed, mixed_by_type(config)))


def _solar(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), out_bias=False)
    return decoder(config, pre_norm_layer(config, mixer, sigmoid_routed(config)))


GLM4_MOE = Family(
    "GLM 4 MoE",
    _glm,
    shared_expert_names(1),
    {
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "num_key_value_heads": 8,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "max_position_embeddings": 131072,
    },
    unread=("mlp_bias",),
)
GLM4_MOE_LITE = Family(
    "GLM 4.7 Flash",
    _glm_lite,
    shared_expert_names(1),
    {
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 512,
        "q_lora_rank": 768,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
        "max_position_embeddings": 202752,
    },
    unread=("mlp_bias",),
)
SOLAR_OPEN = Family(
    "Solar Open",
    _solar,
    shared_expert_names(0),
    {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1280,
        "max_position_embeddings": 131072,
    },
)

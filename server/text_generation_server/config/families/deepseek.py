"""DeepSeek V1 to V3, and models of their form (Mistral Small 4 and Large 3, Sarvam 105B): a mixture of experts with
shared experts after a few dense layers, and, from V2 on, latent attention.
"""

from dataclasses import replace
from typing import Any

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..params import MARK
from ..rope import with_query_scale
from ..spec import DecoderSpec, MixerSpec, MoeSpec
from .common import attention, decoder, gated, pre_norm_layer
from .experts import by_number, divided, groups, mixture, shared_expert_names
from .family import Family
from .latent import latent_attention
from .mistral_names import MISTRAL_NAMES

SIZES = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
"""Of latent attention, where a file has none."""
_HAS_GROUPS = {"greedy": False, "group_limited_greedy": True}
"""Ways of V2 to choose experts."""


def shared_and_routed(config: JsonObject, **route: Any) -> MoeSpec:
    """Experts of which some compute every token; `route`: what `RouteSpec` has besides the usual keys."""
    experts = mixture(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        scale=config.number("routed_scaling_factor", default=1.0),
        wide=True,
        **route,
    )
    shared = config.integer("n_shared_experts", default=1, minimum=0, maximum=64)
    return replace(experts, shared_inner=shared * experts.inner)


def sigmoid_routed(config: JsonObject) -> MoeSpec:
    """Experts of V3: chosen by the sigmoid with a correction, among the best groups."""
    if config.string("scoring_func", default="sigmoid") != "sigmoid":
        raise config.error("scoring_func", "'sigmoid'")
    norm = divided(config, default=True)
    return grouped(config, shared_and_routed(config, score="sigmoid", norm=norm, correction=True))


def grouped(config: JsonObject, experts: MoeSpec) -> MoeSpec:
    """Experts of the best groups alone."""
    return replace(experts, route=replace(experts.route, **groups(config, experts.experts, experts.route.top_k)))


def _decoder(config: JsonObject, mixer: MixerSpec, experts: MoeSpec) -> DecoderSpec:
    if config.integer("moe_layer_freq", default=1) != 1:
        raise UnsupportedModel("`moe_layer_freq` in config.json must be 1: other numbers are not implemented")
    dense = pre_norm_layer(config, mixer, gated(config))
    first = config.integer("first_k_dense_replace", default=0, minimum=0)
    return decoder(config, by_number(config, dense, replace(dense, ffn=experts), lambda index: index >= first))


def _v1(config: JsonObject) -> DecoderSpec:
    if "kv_lora_rank" in config:
        raise UnsupportedModel(
            "`kv_lora_rank` in config.json: this is DeepSeek V2, whose class is DeepseekV2ForCausalLM"
        )
    if config.string("scoring_func", default="softmax") != "softmax":
        raise config.error("scoring_func", "'softmax'")
    experts = shared_and_routed(config, norm=divided(config, default=False))
    # Logits of the router have the type of the model.
    experts = replace(experts, route=replace(experts.route, wide=False))
    return _decoder(config, attention(config), experts)


def _v2(config: JsonObject) -> DecoderSpec:
    if config.string("scoring_func", default="softmax") != "softmax":
        raise config.error("scoring_func", "'softmax'")
    if config.boolean("norm_topk_prob", default=False):
        raise UnsupportedModel("`norm_topk_prob` in config.json is not implemented for this architecture")
    experts = shared_and_routed(config, norm=0, group_score="max")
    if config.choice("topk_method", _HAS_GROUPS, default="greedy"):
        experts = grouped(config, experts)
    return _decoder(config, latent_attention(config, interleaved=True), experts)


def _v3(config: JsonObject) -> DecoderSpec:
    mixer = latent_attention(config, config.boolean("rope_interleave", default=True))
    return _decoder(config, mixer, sigmoid_routed(config))


def _mistral(config: JsonObject) -> DecoderSpec:
    """V3 with the scores of V2, and queries that grow with their position."""
    if config.string("scoring_func", default="softmax") != "softmax":
        raise config.error("scoring_func", "'softmax'")
    mixer = latent_attention(config, config.boolean("rope_interleave", default=True))
    if mixer.rope is not None:
        mixer = replace(mixer, rope=with_query_scale(config, mixer.rope))
    experts = shared_and_routed(config, norm=divided(config, default=True))
    return _decoder(config, mixer, grouped(config, experts))


def _mistral_names(config: JsonObject) -> TensorNames:
    if MARK in config:
        return MISTRAL_NAMES
    return replace(shared_expert_names(0)(config), experts_stack=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"))


def _youtu(config: JsonObject) -> DecoderSpec:
    mixer = latent_attention(config, config.boolean("rope_interleave", default=True))
    return decoder(config, pre_norm_layer(config, mixer, gated(config)))


DEEPSEEK = Family(
    "DeepSeek MoE 16B",
    _v1,
    shared_expert_names(0),
    {"n_shared_experts": 0, "max_position_embeddings": 2048, "moe_intermediate_size": 1407},
    unread=("partial_rotary_factor", "routed_scaling_factor"),
)
DEEPSEEK_V2 = Family(
    "DeepSeek V2",
    _v2,
    shared_expert_names(0),
    {**SIZES, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407},
    unread=("partial_rotary_factor",),
)
DEEPSEEK_V3 = Family(
    "DeepSeek V3",
    _v3,
    shared_expert_names(1),
    {
        **SIZES,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)
SARVAM_MLA = Family(
    "Sarvam (latent attention)",
    _v3,
    shared_expert_names(0),
    {
        **SIZES,
        "q_lora_rank": None,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 4096,
    },
    older={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
    unread=("mlp_bias", "partial_rotary_factor"),
)
MISTRAL4 = Family(
    "Mistral 4",
    _mistral,
    _mistral_names,
    {
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 2048,
        "max_position_embeddings": 1048576,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)
YOUTU = Family(
    "Youtu-LLM",
    _youtu,
    defaults={**SIZES, "tie_word_embeddings": True, "max_position_embeddings": 131072},
    unread=("mlp_bias", "partial_rotary_factor"),
)

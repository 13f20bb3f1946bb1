"""Mixtral and MiniMax-M2, whose tensors have the same names."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, QkNormSpec
from .common import attention, decoder, pre_norm_layer, rms_norm, window, with_rotary_dim
from .experts import mixture
from .family import Family

BLOCK_SPARSE_NAMES = TensorNames(
    router="block_sparse_moe.gate",
    router_correction="block_sparse_moe.e_score_correction_bias",
    expert_gate="block_sparse_moe.experts.{expert}.w1",
    expert_up="block_sparse_moe.experts.{expert}.w3",
    expert_down="block_sparse_moe.experts.{expert}.w2",
)


def _mixtral(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), window=window(config))
    return decoder(config, pre_norm_layer(config, mixer, mixture(config, "num_local_experts", "intermediate_size")))


def _minimax(config: JsonObject) -> DecoderSpec:
    experts = mixture(config, "num_local_experts", "intermediate_size", score="sigmoid", correction=True)
    return decoder(config, pre_norm_layer(config, _minimax_attention(config), experts))


def _minimax_attention(config: JsonObject) -> AttentionSpec:
    """Queries and keys are normalised over all heads, and the first elements of each are rotated."""
    mixer = replace(attention(config), qk_norm=QkNormSpec(rms_norm(config), over="width"))
    return with_rotary_dim(config, mixer)


MIXTRAL = Family(
    "Mixtral",
    _mixtral,
    BLOCK_SPARSE_NAMES,
    {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    },
    unread=("attention_bias", "partial_rotary_factor"),
)
MINIMAX_M2 = Family(
    "MiniMax-M2",
    _minimax,
    BLOCK_SPARSE_NAMES,
    {
        "rope_theta": 5e6,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 196608,
    },
    unread=("attention_bias",),
)

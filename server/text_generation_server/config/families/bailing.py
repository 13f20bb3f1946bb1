"""Ling and Ring of Ant (Bailing MoE 1 and 2) and Sarvam: attention with one matrix of queries, keys and values, and the
experts of DeepSeek V3, or with softmax scores.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, HeadSpec, MoeSpec, QkNormSpec
from .common import attention, decoder, gated, pre_norm_layer, rms_norm, with_rotary_dim
from .deepseek import grouped, shared_and_routed
from .experts import by_number, divided, shared_expert_names
from .family import Family


def _bailing(config: JsonObject) -> DecoderSpec:
    if config.boolean("use_bias", default=False):
        raise UnsupportedModel("`use_bias` in config.json must be false for this family")
    is_tied, is_unit = (config.boolean(key, default=False) for key in ("tie_word_embeddings", "norm_head"))
    if is_tied and is_unit:
        raise UnsupportedModel("`norm_head` in config.json is not implemented with `tie_word_embeddings`")
    dense = pre_norm_layer(config, _attention(config), gated(config))
    first = config.integer("first_k_dense_replace", default=0, minimum=0)
    mixed = replace(dense, ffn=_experts(config))
    head = HeadSpec(tied=is_tied, unit_columns=is_unit)
    return decoder(config, by_number(config, dense, mixed, lambda index: index >= first), head=head)


def _attention(config: JsonObject) -> AttentionSpec:
    mixer = with_rotary_dim(config, attention(config))
    mixer = replace(mixer, qkv_bias=config.boolean("use_qkv_bias", default=False), out_bias=False)
    if config.boolean("use_qk_norm", default=False):
        mixer = replace(mixer, qk_norm=QkNormSpec(rms_norm(config)))
    return mixer


def _experts(config: JsonObject) -> MoeSpec:
    scores = {"softmax": False, "sigmoid": True}
    is_sigmoid = config.choice("score_function", scores, default="softmax")
    experts = shared_and_routed(
        config,
        score="sigmoid" if is_sigmoid else "softmax",
        norm=divided(config, default=True),
        correction=config.boolean("moe_router_enable_expert_bias", default=is_sigmoid),
    )
    if experts.shared_inner and "moe_shared_expert_intermediate_size" in config:
        count = experts.shared_inner // experts.inner
        experts = replace(experts, shared_inner=count * config.integer("moe_shared_expert_intermediate_size"))
    return grouped(config, experts)


def _names(config: JsonObject) -> TensorNames:
    return replace(
        shared_expert_names(1)(config),
        embedding="word_embeddings",
        qkv="attention.query_key_value",
        out="attention.dense",
        q_norm="attention.query_layernorm",
        k_norm="attention.key_layernorm",
        router_correction="mlp.gate.expert_bias",
    )


_OLDER = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
BAILING = Family("Bailing MoE", _bailing, _names, older=_OLDER, unread=("attention_bias", "mlp_bias"))
BAILING2 = Family(
    "Bailing MoE 2",
    _bailing,
    _names,
    {
        "score_function": "sigmoid",
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
    older=_OLDER,
    unread=("attention_bias", "mlp_bias"),
)
SARVAM = Family(
    "Sarvam",
    _bailing,
    _names,
    {
        "score_function": "sigmoid",
        "rope_theta": 8e6,
        "head_dim": 64,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "max_position_embeddings": 131072,
    },
    older={**_OLDER, "use_qkv_bias": "attention_bias"},
    unread=("mlp_bias",),
)

"""Hunyuan MoE: the attention of the dense models, float32 routing, and a shared network. Hy3 has the attention of
Qwen 3 and the experts of DeepSeek V3.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, LayerSpec, MoeSpec, RouteSpec
from .common import MOST_LAYERS, activation, decoder, gated, pre_norm_layer
from .deepseek import sigmoid_routed
from .experts import MOST_EXPERTS, by_number, mixed_by_type, shared_expert_names
from .family import Family
from .hunyuan import HUNYUAN_NAMES, hunyuan_attention
from .qwen2 import qwen3_attention

_NAMES = replace(
    HUNYUAN_NAMES,
    router="mlp.gate.wg",
    shared_gate="mlp.shared_mlp.gate_proj",
    shared_up="mlp.shared_mlp.up_proj",
    shared_down="mlp.shared_mlp.down_proj",
)


def _hunyuan_moe(config: JsonObject) -> DecoderSpec:
    """Counts and sizes are one number for all layers, or a list with one for each."""
    count, inner = config.integer("num_hidden_layers", maximum=MOST_LAYERS), config.integer("intermediate_size")
    columns = (
        config.integer_each("num_experts", count, maximum=MOST_EXPERTS),
        config.integer_each("moe_topk", count),
        config.integer_each("moe_intermediate_size", count, default=inner),
        config.integer_each("num_shared_expert", count, default=1, maximum=64),
    )
    layers = {each: _layer(config, *each) for each in set(zip(*columns, strict=True))}
    return decoder(config, tuple(layers[each] for each in zip(*columns, strict=True)))


def _layer(config: JsonObject, experts: int, top_k: int, inner: int, shared: int) -> LayerSpec:
    if top_k > experts:
        raise config.error("moe_topk", f"at most the number of experts ({experts})")
    shared_inner = shared * config.integer("intermediate_size")
    mixed = MoeSpec(experts, inner, activation(config), RouteSpec(top_k, wide=True), shared_inner=shared_inner)
    return pre_norm_layer(config, hunyuan_attention(config), mixed)


def _hy3(config: JsonObject) -> DecoderSpec:
    for key in ("qk_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"):
        if not config.boolean(key, default=True):
            raise UnsupportedModel(f"`{key}` in config.json must be true for this family")
    if config.boolean("mlp_bias", default=False):
        raise UnsupportedModel("`mlp_bias` in config.json must be false for this family")
    dense = pre_norm_layer(config, qwen3_attention(config), gated(config))
    mixed = replace(dense, ffn=sigmoid_routed(config))
    return decoder(config, by_number(config, dense, mixed, mixed_by_type(config)))


def _hy3_names(config: JsonObject) -> TensorNames:
    return replace(
        shared_expert_names(1)(config),
        router="mlp.router.gate",
        router_correction="mlp.expert_bias",
        shared_gate="mlp.shared_mlp.gate_proj",
        shared_up="mlp.shared_mlp.up_proj",
        shared_down="mlp.shared_mlp.down_proj",
    )


HUNYUAN_MOE = Family(
    "Hunyuan MoE",
    _hunyuan_moe,
    _NAMES,
    {"rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1},
    unread=("partial_rotary_factor",),
)
HY3 = Family(
    "Hy3",
    _hy3,
    _hy3_names,
    {
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840.0,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "max_position_embeddings": 131072,
    },
    aliases={
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "norm_topk_prob": "route_norm",
        "routed_scaling_factor": "router_scaling_factor",
    },
    older={"moe_intermediate_size": "expert_hidden_dim"},
    unread=("n_group", "partial_rotary_factor", "scoring_func", "topk_group"),
)

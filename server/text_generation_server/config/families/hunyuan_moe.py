"""Hunyuan MoE: the attention of the dense models, float32 routing, and a shared network."""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec, LayerSpec, MoeSpec, RouteSpec
from .common import MOST_LAYERS, activation, decoder, pre_norm_layer
from .experts import MOST_EXPERTS
from .family import Family
from .hunyuan import HUNYUAN_NAMES, hunyuan_attention

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


HUNYUAN_MOE = Family(
    "Hunyuan MoE",
    _hunyuan_moe,
    _NAMES,
    {"rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1},
    unread=("partial_rotary_factor",),
)

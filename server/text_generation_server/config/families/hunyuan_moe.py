"""Hunyuan MoE: the attention of the dense models, float32 routing, and a shared network."""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec
from .common import decoder, pre_norm_layer
from .experts import mixture
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
    inner = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    experts = mixture(config, "num_experts", inner, "moe_topk", wide=True)
    experts = replace(experts, shared_inner=config.integer("intermediate_size"))
    return decoder(config, pre_norm_layer(config, hunyuan_attention(config), experts))


HUNYUAN_MOE = Family("Hunyuan MoE", _hunyuan_moe, _NAMES, {"rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1})

"""Aria (Rhymes AI, 2024): Llama with experts and shared ones in each layer."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec
from .common import attention, decoder, pre_norm_layer
from .experts import mixture
from .family import Family


def _aria(config: JsonObject) -> DecoderSpec:
    if config.boolean("mlp_bias", default=False):
        raise UnsupportedModel("`mlp_bias` in config.json must be false for this family")
    # The softmax is over the chosen experts, which is that over all, divided by their sum.
    experts = mixture(config, "moe_num_experts", "intermediate_size", "moe_topk", norm=1)
    shared = config.integer("moe_num_shared_experts", maximum=64)
    experts = replace(experts, shared_inner=shared * experts.inner)
    return decoder(config, pre_norm_layer(config, attention(config), experts))


_NAMES = TensorNames(
    router="mlp.router",
    experts_stack=("mlp.experts.fc1.weight", "mlp.experts.fc2.weight"),
    stack_layout="transposed",
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)
ARIA = Family(
    "Aria",
    _aria,
    _NAMES,
    {"moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2, "max_position_embeddings": 2048},
    unread=("partial_rotary_factor",),
)

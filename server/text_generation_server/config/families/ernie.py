"""ERNIE 4.5: pairs of neighbours are rotated; mixtures choose experts by softmax scores with a correction."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, HeadSpec, MoeSpec
from .common import MOST_LAYERS, attention, decoder, gated, pre_norm_layer
from .experts import by_number, mixture
from .family import Family

_LEAST_SUM = 1e-6
"""Published files divide weights by their sum, or by 1e-12 where that is less, as it never is."""
_DEFAULTS = {
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
_BIASES = {"attention_bias": "use_bias", "mlp_bias": "use_bias"}


def _dense(config: JsonObject) -> DecoderSpec:
    return decoder(config, pre_norm_layer(config, _attention(config), gated(config)), head=_head(config))


def _mixed(config: JsonObject) -> DecoderSpec:
    if config.boolean("mlp_bias", default=False):
        raise UnsupportedModel("`use_bias` in config.json must be false where there are experts")
    dense = pre_norm_layer(config, _attention(config), gated(config))
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    first = config.integer("moe_layer_start_index", default=1, minimum=0)
    step, last = config.integer("moe_layer_interval", default=1), count - 1
    if config.plain().get("moe_layer_end_index") not in (None, -1):
        last = config.integer("moe_layer_end_index", minimum=0)
    layers = by_number(
        config,
        dense,
        replace(dense, ffn=_experts(config)),
        lambda index: first <= index <= last and (index + 1) % step == 0,
    )
    return decoder(config, layers, head=_head(config))


def _attention(config: JsonObject) -> AttentionSpec:
    plain = attention(config)
    return replace(plain, rope=parse_rope(config, plain.head_dim, interleaved=True))


def _experts(config: JsonObject) -> MoeSpec:
    if config.number("moe_norm_min", default=1e-12) > _LEAST_SUM:
        raise UnsupportedModel(f"`moe_norm_min` in config.json above {_LEAST_SUM:g} is not implemented")
    experts = mixture(config, "moe_num_experts", "moe_intermediate_size", "moe_k", norm=1, correction=True, wide=True)
    shared = config.integer("moe_num_shared_experts", default=2, minimum=0, maximum=64)
    return replace(experts, shared_inner=shared * experts.inner)


def _head(config: JsonObject) -> HeadSpec:
    return HeadSpec(tied=config.boolean("tie_word_embeddings", default=True))


ERNIE = Family(
    "ERNIE 4.5",
    _dense,
    defaults={**_DEFAULTS, "num_key_value_heads": 2, "head_dim": 128},
    aliases=_BIASES,
    unread=("partial_rotary_factor",),
)
ERNIE_MOE = Family(
    "ERNIE 4.5 MoE",
    _mixed,
    TensorNames(
        router_correction="mlp.moe_statics.e_score_correction_bias",
        correction_is_row=True,
        shared_gate="mlp.shared_experts.gate_proj",
        shared_up="mlp.shared_experts.up_proj",
        shared_down="mlp.shared_experts.down_proj",
        ignored=("model.mtp_*", "mtp_*"),
    ),
    {
        **_DEFAULTS,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
    },
    aliases=_BIASES,
    unread=("partial_rotary_factor",),
)

"""Qwen 3 Next, 3.5 and 3.6: gated delta nets, and every few layers attention with a gate on its output."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import GatedDeltaSpec
from ..spec import AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, NormSpec, QkNormSpec
from .common import MOST_HEADS, MOST_KERNEL, MOST_STATE, attention, decoder, gated, layer_types, silu_alone
from .experts import divided, mixture
from .family import Family

_INTERVAL = 4
"""Every so many-th layer has attention where `full_attention_interval` is absent."""


def _dense(config: JsonObject) -> DecoderSpec:
    network = gated(config)
    return _decoder(config, lambda _: network)


def _mixture(config: JsonObject) -> DecoderSpec:
    """Some layers may be dense in Qwen 3 Next."""
    experts = replace(
        mixture(config, "num_experts", "moe_intermediate_size", norm=divided(config, default=True)),
        shared_inner=config.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    step = config.integer("decoder_sparse_step", default=1)
    dense = config.token_ids("mlp_only_layers")

    def ffn(index: int) -> FeedForwardSpec:
        return experts if index not in dense and (index + 1) % step == 0 else gated(config)

    return _decoder(config, ffn)


def _decoder(config: JsonObject, ffn: Callable[[int], FeedForwardSpec]) -> DecoderSpec:
    norm = _norm(config)
    recurrent, full = _gated_delta(config), _attention(config)
    mixers = {"full_attention": full, "linear_attention": recurrent}
    types = layer_types(config, mixers, partial(_type_by_interval, config))
    layers = tuple(LayerSpec(mixers[name], ffn(index), norm, norm) for index, name in enumerate(types))
    return decoder(config, layers, norm)


def _norm(config: JsonObject) -> NormSpec:
    return NormSpec(config.number("rms_norm_eps", default=1e-6), wide=True, one_plus=True)


def _type_by_interval(config: JsonObject, index: int) -> str:
    interval = config.integer("full_attention_interval", default=_INTERVAL)
    return "linear_attention" if (index + 1) % interval else "full_attention"


def _attention(config: JsonObject) -> AttentionSpec:
    for key, wanted in (("attention_bias", False), ("attn_output_gate", True)):
        if config.boolean(key, default=wanted) != wanted:
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    return replace(attention(config), qk_norm=QkNormSpec(_norm(config)), output_gate="sigmoid")


def _gated_delta(config: JsonObject) -> GatedDeltaSpec:
    silu_alone(config, "hidden_act")
    heads = config.integer("linear_num_value_heads", maximum=MOST_HEADS)
    key_heads = config.integer("linear_num_key_heads")
    if heads % key_heads:
        raise config.error("linear_num_key_heads", f"a divisor of `linear_num_value_heads` ({heads})")
    return GatedDeltaSpec(
        heads,
        key_heads,
        config.integer("linear_key_head_dim", maximum=MOST_STATE),
        config.integer("linear_value_head_dim", maximum=MOST_STATE),
        config.integer("linear_conv_kernel_dim", minimum=2, maximum=MOST_KERNEL),
        config.number("rms_norm_eps", default=1e-6),
    )


_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 32768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "shared_expert_intermediate_size": 512,
    "moe_intermediate_size": 512,
}
_IGNORED = ("*rotary_emb.inv_freq", "mtp.*")
"""Behind the last layer, checkpoints have one that guesses further tokens."""

QWEN3_NEXT = Family(
    "Qwen 3 Next",
    _mixture,
    TensorNames(delta_qkvz="linear_attn.in_proj_qkvz", delta_ba="linear_attn.in_proj_ba", ignored=_IGNORED),
    {**_DEFAULTS, "num_experts": 512, "num_experts_per_tok": 10},
    older={"num_experts": "num_local_experts"},
    unread=("mlp_bias",),
)
QWEN3_5 = Family(
    "Qwen 3.5 and 3.6",
    _dense,
    TensorNames(ignored=_IGNORED),
    {**_DEFAULTS, "num_key_value_heads": 4},
    unread=("mlp_bias",),
)
QWEN3_5_MOE = Family(
    "Qwen 3.5 and 3.6 MoE",
    _mixture,
    TensorNames(experts_stack=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), ignored=_IGNORED),
    {**_DEFAULTS, "num_experts": 256, "num_experts_per_tok": 8},
    unread=("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"),
)

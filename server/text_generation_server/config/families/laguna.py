"""Laguna of Poolside: gates of heads through a softplus, numbers of heads by layer, RoPE by type of layer, and experts
chosen by the sigmoid with a correction.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, MoeSpec, NormSpec, QkNormSpec
from .common import MOST_HEADS, decoder, gated, layer_types, rms_norm
from .experts import mixed_by_type, mixture
from .family import Family

_FULL, _SLIDING = "full_attention", "sliding_attention"
_GATINGS = {"per-head": True, "per-element": False}
_CAP, _ON_INPUT = "moe_router_logit_softcapping", "moe_apply_router_weight_on_input"


def _laguna(config: JsonObject) -> DecoderSpec:
    for key in ("attention_bias", _ON_INPUT):
        if config.boolean(key, default=False):
            raise UnsupportedModel(f"`{key}` in config.json must be false for this family")
    if config.plain().get(_CAP):
        raise UnsupportedModel(f"`{_CAP}` in config.json must be 0: caps of the router's logits are not implemented")
    norm, key = rms_norm(config), "num_attention_heads_per_layer"
    kinds = layer_types(config, (_FULL, _SLIDING), lambda _: _FULL)
    of_all = config.integer("num_attention_heads", maximum=MOST_HEADS)
    heads = config.integer_each(key, len(kinds), maximum=MOST_HEADS) if key in config else (of_all,) * len(kinds)
    mixers = {kind: _attention(config, norm, kind) for kind in (_FULL, _SLIDING)}
    experts, dense, is_mixed = _experts(config), gated(config), mixed_by_type(config)
    layers: list[LayerSpec] = []
    for index, (kind, count) in enumerate(zip(kinds, heads, strict=True)):
        if count % mixers[kind].num_kv_heads:
            raise config.error("num_key_value_heads", f"a divisor of the {count} heads of layer {index}")
        mixer = replace(mixers[kind], num_heads=count)
        layers.append(LayerSpec(mixer, experts if is_mixed(index) else dense, norm, norm))
    return decoder(config, tuple(layers))


def _attention(config: JsonObject, norm: NormSpec, kind: str) -> AttentionSpec:
    size = config.integer("head_dim")
    return AttentionSpec(
        config.integer("num_attention_heads", maximum=MOST_HEADS),
        config.integer("num_key_value_heads"),
        size,
        scale=size**-0.5,
        rope=parse_rope(config, size, layer_type=kind),
        qk_norm=QkNormSpec(norm),
        window=config.integer("sliding_window") if kind == _SLIDING else 0,
        output_gate="softplus",
        gates_heads=_gates_heads(config),
    )


def _gates_heads(config: JsonObject) -> bool:
    """True, as most files have it, or a name."""
    return config.plain().get("gating", True) is True or config.choice("gating", _GATINGS)


def _experts(config: JsonObject) -> MoeSpec:
    scale = config.number("moe_routed_scaling_factor", default=1.0)
    experts = mixture(config, "num_experts", "moe_intermediate_size", score="sigmoid", scale=scale, correction=True)
    return replace(experts, shared_inner=config.integer("shared_expert_intermediate_size"))


LAGUNA = Family(
    "Laguna",
    _laguna,
    TensorNames(attention_gate="self_attn.g_proj", router_correction="mlp.experts.e_score_correction_bias"),
    {
        "head_dim": 128,
        "num_key_value_heads": 8,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "sliding_window": 512,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            _FULL: {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    },
    unread=("mlp_bias",),
)

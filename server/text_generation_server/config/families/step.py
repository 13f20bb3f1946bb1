"""Step 3.5 and 3.7 of StepFun: gates of heads, more heads in layers with a window, RoPE by layer, and experts whose
activations are bounded in some layers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import AttentionSpec, DecoderSpec, GatedActivation, LayerSpec, MoeSpec, NormSpec, QkNormSpec
from .common import MOST_HEADS, MOST_LAYERS, decoder, gated
from .experts import mixed_by_type, mixture
from .family import Family

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WANTED: Mapping[str, object] = {
    "att_impl_type": "GQA",
    "attention_bias": False,
    "gating": True,
    "mlp_bias": False,
    "moe_router_activation": "sigmoid",
    "norm_expert_weight": True,
    "sink": False,
    "use_bidirectional_attention": False,
    "use_head_wise_attn_gate": True,
    "use_mfa": False,
    "use_moe": True,
    "use_moe_router_bias": True,
    "use_qk_norm": True,
    "zero_centered": True,
}
"""Keys that published files have with these values alone."""
_ACTIVATIONS: Mapping[float, GatedActivation] = {0: "silu", 7: "silu_within_7", 16: "silu_within_16"}
"""By the bound of a layer; 0: it has none."""
_OTHER = "attention_other_setting"
"""What layers with a window have otherwise, in published files."""


def _step(config: JsonObject) -> DecoderSpec:
    _refuse_others(config)
    norm, kinds = _norm(config), _kinds(config)
    mixers = [_attention(config, index, kind) for index, kind in enumerate(kinds)]
    routed, shared = (_activations(config, key) for key in ("swiglu_limits", "swiglu_limits_shared"))
    is_mixed, dense, experts = _mixed(config), gated(config), _experts(config)
    layers = tuple(
        LayerSpec(
            mixer,
            replace(experts, activation=routed[index], shared_activation=shared[index])
            if is_mixed[index]
            else replace(dense, activation=shared[index]),
            norm,
            norm,
        )
        for index, mixer in enumerate(mixers)
    )
    return decoder(config, layers, norm)


def _refuse_others(config: JsonObject) -> None:
    values = config.plain()
    for key, wanted in _WANTED.items():
        if values.get(key, wanted) not in (wanted, None):
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    if not all(cast("list[object]", values.get("use_rope_layers") or [])):
        raise UnsupportedModel(
            "`use_rope_layers` in config.json must be empty: layers without RoPE are not implemented"
        )
    if config.strings("yarn_only_types") not in ((), (_FULL,)):
        raise UnsupportedModel(f"`yarn_only_types` in config.json must be ['{_FULL}'] for this family")


def _norm(config: JsonObject) -> NormSpec:
    return NormSpec(config.number("rms_norm_eps", default=1e-5), wide=True, one_plus=True)


def _layers(config: JsonObject) -> int:
    return config.integer("num_hidden_layers", maximum=MOST_LAYERS)


def _listed(config: JsonObject, key: str) -> list[object] | None:
    """Values by layer. Those of layers that guess further tokens may follow."""
    value, count = config.plain().get(key), _layers(config)
    if not isinstance(value, list):
        return None
    found = cast("list[object]", value)
    guessing = config.integer("num_nextn_predict_layers", default=0, minimum=0)
    if len(found) not in (count, count + guessing):
        raise config.error(key, f"a list of {count} values, or of {count + guessing}")
    return found[:count]


def _kinds(config: JsonObject) -> list[str]:
    key = "layer_types"
    kinds = _listed(config, key) or [_FULL] * _layers(config)
    if set(kinds) - {_FULL, _SLIDING}:
        raise config.error(key, f"names out of {_FULL}, {_SLIDING}")
    return [str(kind) for kind in kinds]


def _numbers(config: JsonObject, key: str, default: float, zero: bool = False) -> tuple[float, ...]:
    """A number for each layer: a list, in which null is 0, or one number for all."""
    listed, count = _listed(config, key), _layers(config)
    if listed is None:
        return (config.number(key, default=default) if key in config else default,) * count
    return JsonObject({key: [each or 0 for each in listed]}, config.source).numbers(key, count, zero)


def _attention(config: JsonObject, index: int, kind: str) -> AttentionSpec:
    size, heads, groups = config.integer("head_dim"), "num_attention_heads", config.integer("num_key_value_heads")
    count = config.integer(heads, maximum=MOST_HEADS)
    if kind == _SLIDING:
        other = config.child(_OTHER)
        if other.integer("head_dim", default=size) != size or other.string("attention_type", default=kind) != kind:
            raise UnsupportedModel(f"`{_OTHER}` in config.json must be of layers with a window, with heads of {size}")
        count = config.integer("num_sliding_attention_heads", default=other.integer(heads, default=count))
        groups = other.integer("num_attention_groups", default=groups)
    if count % groups:
        raise config.error("num_key_value_heads", f"a divisor of the {count} heads of layer {index}")
    return AttentionSpec(
        count,
        groups,
        size,
        scale=config.number("query_pre_attn_scalar", default=float(size)) ** -0.5,
        rope=_rope(config, index, kind, size),
        qk_norm=QkNormSpec(_norm(config)),
        window=config.integer("sliding_window") if kind == _SLIDING else 0,
        output_gate="sigmoid",
        gates_heads=True,
    )


def _rope(config: JsonObject, index: int, kind: str, size: int) -> RopeSpec:
    """Layers without a window alone are stretched."""
    theta, share = "rope_theta", "partial_rotary_factor"
    of_layer = {
        theta: _numbers(config, theta, 1e4)[index],
        share: _numbers(config, f"{share}s", 1.0)[index],
        "max_position_embeddings": config.integer("max_position_embeddings"),
    }
    # So that keys in it that nobody reads are refused.
    for key in ("rope_parameters", "rope_scaling"):
        config.child(key).child(kind)
    return parse_rope(config.with_values(of_layer), size, layer_type=kind, scaled=kind == _FULL)


def _activations(config: JsonObject, key: str) -> list[GatedActivation]:
    """Bounded where a layer has a number above 0."""
    limits = _numbers(config, key, 0.0, zero=True)
    if set(limits) - set(_ACTIVATIONS):
        raise UnsupportedModel(
            f"`{key}` in config.json must have the bounds 7 and 16, or 0 for none: others are not read"
        )
    return [_ACTIVATIONS[limit] for limit in limits]


def _mixed(config: JsonObject) -> list[bool]:
    """Whether layers have experts."""
    key, count = "moe_layers_enum", _layers(config)
    value = config.plain().get(key)
    if value is None:
        is_mixed = mixed_by_type(config)
        return [is_mixed(index) for index in range(count)]
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(str(each).strip().isdecimal() for each in cast("list[object]", listed)):
        raise config.error(key, "numbers of layers, separated by commas")
    numbers = {int(str(each)) for each in cast("list[object]", listed)}
    return [index in numbers for index in range(count)]


def _experts(config: JsonObject) -> MoeSpec:
    experts = mixture(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        score="sigmoid",
        scale=config.number("moe_router_scaling_factor", default=1.0),
        correction=True,
        wide=config.boolean("need_fp32_gate", default=True),
    )
    return replace(experts, shared_inner=config.integer("share_expert_dim"))


def _names(config: JsonObject) -> TensorNames:
    guessing = config.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=16)
    first = _layers(config)
    return TensorNames(
        attention_gate="self_attn.g_proj",
        router="moe.gate",
        router_correction="moe.router_bias",
        experts_apart=True,
        expert_gate="moe.gate_proj.{expert}",
        expert_up="moe.up_proj.{expert}",
        expert_down="moe.down_proj.{expert}",
        shared_gate="share_expert.gate_proj",
        shared_up="share_expert.up_proj",
        shared_down="share_expert.down_proj",
        ignored=tuple(f"model.layers.{first + index}.*" for index in range(guessing)),
    )


STEP = Family(
    "Step",
    _step,
    _names,
    {
        "head_dim": 128,
        "num_key_value_heads": 8,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 128000,
    },
    older={
        "num_key_value_heads": "num_attention_groups",
        "n_routed_experts": "moe_num_experts",
        "num_experts_per_tok": "moe_top_k",
    },
    unread=("hidden_act",),
)

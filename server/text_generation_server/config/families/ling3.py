"""Ling and Ring 3 of Ant (Bailing MoE 3): Kimi delta attention whose decays have a lower bound, every few layers latent
attention with gates, and the experts of DeepSeek V3.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import KimiDeltaSpec
from ..spec import DecoderSpec, LatentAttentionSpec, MoeSpec
from .common import (
    MOST_HEADS,
    MOST_KERNEL,
    MOST_LAYERS,
    MOST_STATE,
    decoder,
    gated,
    layer_types,
    pre_norm_layer,
    silu_alone,
)
from .deepseek import SIZES, sigmoid_routed
from .experts import mixed_by_type, shared_expert_names
from .family import Family
from .latent import latent_attention

_WANTED: Mapping[str, object] = {
    "moe_router_enable_expert_bias": True,
    "no_kda_lora": True,
    "norm_topk_prob": True,
    "pregate_inference": False,
    "scale_router_input": False,
    "score_function": "sigmoid",
    "up_proj_norm": False,
    "use_bias": False,
    "use_kda_lora": False,
    "use_mla_nope": False,
    "use_nGPT": False,
    "use_qkv_bias": False,
    "value_norm": False,
}
"""Keys that published files have with these values alone."""
_LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
_GATES = {"head_wise": "heads", "element_wise": "elements"}
_GATES_KEY = "gated_attention_proj_granularity_type"


_FULL, _LINEAR = "full_attention", "linear_attention"


def _ling3(config: JsonObject, tail: bool = True) -> DecoderSpec:
    """With `tail`, layers after the last whole group have attention."""
    refuse_others(config, _WANTED)
    full, linear, dense, experts = _latent(config), _kimi_delta(config), gated(config), with_shared_size(config)
    is_mixed = mixed_by_type(config)
    layers = (
        pre_norm_layer(config, full if each else linear, experts if is_mixed(index) else dense)
        for index, each in enumerate(is_full(config, tail))
    )
    return decoder(config, tuple(layers))


def is_full(config: JsonObject, tail: bool = True) -> list[bool]:
    """Whether each layer has attention: as `layer_types` says, else the last one of each group, and, with `tail`, those
    after the last whole group.
    """
    count, group = config.integer("num_hidden_layers", maximum=MOST_LAYERS), config.integer("layer_group_size")
    last = count // group * group if tail else count
    kinds = layer_types(
        config, (_FULL, _LINEAR), lambda index: _FULL if (index + 1) % group == 0 or index >= last else _LINEAR
    )
    return [kind == _FULL for kind in kinds]


def refuse_others(config: JsonObject, only: Mapping[str, object]) -> None:
    """Raises UnsupportedModel for other values than `only` these, or for bounds of activations."""
    values = config.plain()
    for key, wanted in only.items():
        if values.get(key, wanted) not in (wanted, None):
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    for key in _LIMITS:
        if any(values.get(key) or ()):  # type: ignore[arg-type]
            raise UnsupportedModel(f"`{key}` in config.json is not implemented: bounds of activations change results")


def _latent(config: JsonObject) -> LatentAttentionSpec:
    mixer = latent_attention(config, config.boolean("rope_interleave", default=True))
    if mixer.rope is not None and mixer.rope.rope_type != "default":
        raise UnsupportedModel("`rope_scaling` in config.json is not implemented for this family")
    gates = config.choice(_GATES_KEY, _GATES) if _GATES_KEY in config else None
    return replace(mixer, gates=gates)


def _kimi_delta(config: JsonObject) -> KimiDeltaSpec:
    silu_alone(config, "hidden_act")
    heads, others = config.integer("num_attention_heads", maximum=MOST_HEADS), "num_kv_heads_for_linear_attn"
    if config.plain().get(others) not in (None, 0, heads):
        raise UnsupportedModel(f"`{others}` in config.json must be 0 or `num_attention_heads` ({heads})")
    # Transformers writes the size of what latent attention rotates as `head_dim`.
    key, least = "linear_head_dim" if "linear_head_dim" in config else "head_dim", "kda_lower_bound"
    size = config.integer(key, maximum=MOST_STATE)
    bound = config.number(least, default=-5.0, above=-1e9)
    if bound >= 0:
        raise config.error(least, "a number below 0")
    return KimiDeltaSpec(
        heads,
        size,
        size,
        config.integer("short_conv_kernel_size", minimum=2, maximum=MOST_KERNEL),
        config.number("rms_norm_eps", default=1e-6),
        least=bound if config.boolean("kda_safe_gate", default=True) else 0.0,
    )


def with_shared_size(config: JsonObject) -> MoeSpec:
    """The experts of V3 and a shared one, which may have a size of its own."""
    experts, key = sigmoid_routed(config), "moe_shared_expert_intermediate_size"
    if key not in config:
        return experts
    return replace(experts, shared_inner=experts.shared_inner // experts.inner * config.integer(key))


def ling_names(config: JsonObject) -> TensorNames:
    """Names of what all layers have, and of latent attention."""
    inside, names = "attention", shared_expert_names(0)(config)
    return replace(
        names,
        embedding="word_embeddings",
        out=f"{inside}.dense",
        q=f"{inside}.q_proj",
        q_a=f"{inside}.q_a_proj",
        q_a_norm=f"{inside}.q_a_layernorm",
        q_b=f"{inside}.q_b_proj",
        kv_a=f"{inside}.kv_a_proj_with_mqa",
        kv_a_norm=f"{inside}.kv_a_layernorm",
        kv_b=f"{inside}.kv_b_proj",
        router_correction="mlp.gate.expert_bias",
        ignored=(*names.ignored, "model.mtp*"),
    )


def _names(config: JsonObject) -> TensorNames:
    inside = "attention"
    return replace(
        ling_names(config),
        attention_gate=f"{inside}.g_proj",
        delta_apart=(f"{inside}.q_proj", f"{inside}.k_proj", f"{inside}.v_proj"),
        delta_convs=(f"{inside}.q_conv1d", f"{inside}.k_conv1d", f"{inside}.v_conv1d"),
        delta_decay=(f"{inside}.f_proj",),
        delta_gate=(f"{inside}.g_proj",),
        delta_b=f"{inside}.b_proj",
        delta_rate=f"{inside}.A_log",
        delta_bias=f"{inside}.dt_bias",
        delta_norm=f"{inside}.o_norm",
        delta_out=f"{inside}.o_proj",
        # As Transformers writes it.
        instead={"delta_out": f"{inside}.dense"},
    )


_OLDER = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
LING3 = Family(
    "Bailing MoE 3",
    _ling3,
    _names,
    {
        **SIZES,
        "q_lora_rank": None,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "first_k_dense_replace": 0,
        "routed_scaling_factor": 1.0,
    },
    older=_OLDER,
    unread=("attention_bias", "mlp_bias", "partial_rotary_factor"),
)
BAILING_HYBRID = Family(
    "Bailing MoE 3 of Transformers",
    partial(_ling3, tail=False),
    _names,
    {
        **LING3.defaults,
        _GATES_KEY: "head_wise",
        "first_k_dense_replace": 2,
        "layer_group_size": 6,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 768,
        "n_group": 8,
        "n_routed_experts": 512,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "rope_theta": 6e6,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
    },
    older=_OLDER
    | {
        "max_position_embeddings": "model_max_length",
        "n_group": "num_expert_group",
        "norm_topk_prob": "moe_renormalize",
        "num_experts_per_tok": "num_experts_per_token",
    },
    unread=LING3.unread,
)

"""Kimi Linear of Moonshot: Kimi delta attention, every few layers latent attention without RoPE, and the experts of
DeepSeek V3.
"""

from collections.abc import Callable
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import KimiDeltaSpec
from ..spec import DecoderSpec
from .common import MOST_HEADS, MOST_KERNEL, MOST_STATE, decoder, gated, layer_types, pre_norm_layer, silu_alone
from .deepseek import SIZES, sigmoid_routed
from .experts import mixed_by_type
from .family import Family
from .latent import latent_attention

_FULL, _LINEAR = "full_attention", "linear_attention"
OF_STATES = "linear_attn_config"
"""What published files say about Kimi delta attention."""


def _kimi_linear(config: JsonObject) -> DecoderSpec:
    for key, wanted in (("mla_use_nope", True), ("use_grouped_topk", True)):
        if config.boolean(key, default=wanted) != wanted:
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    for key, wanted in (("moe_layer_freq", 1), ("moe_router_activation_func", "sigmoid")):
        if config.plain().get(key, wanted) != wanted:
            raise UnsupportedModel(f"`{key}` in config.json must be {wanted!r} for this family")
    mixers = {_FULL: latent_attention(config, interleaved=False, rotates=False), _LINEAR: kimi_delta(config)}
    is_mixed, experts, dense = mixed_by_type(config), sigmoid_routed(config), gated(config)
    kinds = enumerate(layer_types(config, mixers, _by_number(config)))
    layers = (pre_norm_layer(config, mixers[kind], experts if is_mixed(index) else dense) for index, kind in kinds)
    return decoder(config, tuple(layers))


def kimi_delta(config: JsonObject) -> KimiDeltaSpec:
    """Kimi delta attention, whose sizes stand apart in published files."""
    silu_alone(config, "hidden_act")
    of_states = config.child(OF_STATES)

    def size(published: str, usual: str, maximum: int, minimum: int = 1) -> int:
        source, key = (of_states, published) if published in of_states else (config, usual)
        return source.integer(key, minimum=minimum, maximum=maximum)

    elements = size("head_dim", "linear_head_dim", MOST_STATE)
    return KimiDeltaSpec(
        size("num_heads", "linear_num_heads", MOST_HEADS),
        elements,
        elements,
        size("short_conv_kernel_size", "linear_conv_kernel_dim", MOST_KERNEL, 2),
        config.number("rms_norm_eps"),
        rank=elements,
    )


def _by_number(config: JsonObject) -> Callable[[int], str]:
    """Types of layers where `layer_types` does not list them: lists of layers, which count from 1 here, or every fourth
    one after the first.
    """
    of_states, lists = config.child(OF_STATES), ("full_attn_layers", "kda_layers")
    if any(key not in of_states for key in lists):
        return lambda index: _FULL if index and index % 4 == 0 else _LINEAR
    count = config.integer("num_hidden_layers")
    full, linear = (of_states.layer_numbers(key, count + 1) for key in lists)
    if sorted((*full, *linear)) != list(range(1, count + 1)):
        raise of_states.error(lists[1], f"the layers from 1 to {count} that `{lists[0]}` leaves out")
    return lambda index: _FULL if index + 1 in full else _LINEAR


def _names(config: JsonObject) -> TensorNames:
    mixture = "block_sparse_moe"
    first, extra = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", default=0, minimum=0)
    names = TensorNames(
        router=f"{mixture}.gate",
        router_correction=f"{mixture}.gate.e_score_correction_bias",
        expert_gate=f"{mixture}.experts.{{expert}}.w1",
        expert_up=f"{mixture}.experts.{{expert}}.w3",
        expert_down=f"{mixture}.experts.{{expert}}.w2",
        shared_gate=f"{mixture}.shared_experts.gate_proj",
        shared_up=f"{mixture}.shared_experts.up_proj",
        shared_down=f"{mixture}.shared_experts.down_proj",
        ignored=tuple(f"model.layers.{first + index}.*" for index in range(min(extra, 16))),
    )
    return with_kimi_delta(names)


def with_kimi_delta(names: TensorNames) -> TensorNames:
    """Returns the same names, with those of Kimi delta attention."""
    delta = "self_attn"
    return replace(
        names,
        delta_apart=(f"{delta}.q_proj", f"{delta}.k_proj", f"{delta}.v_proj"),
        delta_convs=(f"{delta}.q_conv1d", f"{delta}.k_conv1d", f"{delta}.v_conv1d"),
        delta_b=f"{delta}.b_proj",
        delta_rate=f"{delta}.A_log",
        delta_bias=f"{delta}.dt_bias",
        delta_norm=f"{delta}.o_norm",
        delta_out=f"{delta}.o_proj",
        unstored=("forget_gate.",),
    )


KIMI_LINEAR = Family(
    "Kimi Linear",
    _kimi_linear,
    _names,
    {
        **SIZES,
        "q_lora_rank": None,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-5,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.446,
        "model_max_length": 1048576,
    },
    aliases={
        "max_position_embeddings": "model_max_length",
        "n_group": "num_expert_group",
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "norm_topk_prob": "moe_renormalize",
        "num_experts_per_tok": "num_experts_per_token",
    },
    unread=("mlp_bias", "partial_rotary_factor", "rope_scaling", "rope_theta", "scoring_func"),
)

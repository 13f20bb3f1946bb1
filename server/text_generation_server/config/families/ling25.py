"""Ling and Ring 2.5 and 2.6 of Ant (Bailing MoE 2.5): lightning attention, every few layers latent attention, and the
experts of DeepSeek V3.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import LightningSpec
from ..rope import parse_rope
from ..spec import DecoderSpec, LatentAttentionSpec
from .alibi import slopes
from .common import MOST_HEADS, MOST_LAYERS, MOST_STATE, decoder, gated, pre_norm_layer
from .deepseek import SIZES
from .experts import mixed_by_type
from .family import Family
from .latent import latent_attention
from .ling3 import is_full, ling_names, refuse_others, with_shared_size

_WANTED: Mapping[str, object] = {
    "linear_rope": True,
    "linear_silu": False,
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "topk_method": "noaux_tc",
    "use_bias": False,
    "use_linear_silu": False,
    "use_qkv_bias": False,
}
"""Keys that published files have with these values alone."""


def _ling25(config: JsonObject) -> DecoderSpec:
    refuse_others(config, _WANTED)
    # Decays are a function of how far behind the first layer one is.
    count = config.integer("num_hidden_layers", minimum=2, maximum=MOST_LAYERS)
    full, linear, dense, experts = _latent(config), _lightning(config), gated(config), with_shared_size(config)
    is_mixed = mixed_by_type(config)

    def mixer(index: int, is_latent: bool) -> LatentAttentionSpec | LightningSpec:
        share = 1 - (index - 1) / (count - 1) + 1e-5
        return full if is_latent else replace(linear, decays=tuple(each * share for each in linear.decays))

    mixers = (mixer(index, is_latent) for index, is_latent in enumerate(is_full(config)))
    layers = (pre_norm_layer(config, each, experts if is_mixed(index) else dense) for index, each in enumerate(mixers))
    return decoder(config, tuple(layers))


def _latent(config: JsonObject) -> LatentAttentionSpec:
    mixer = latent_attention(config, config.boolean("rope_interleave", default=True))
    # `partial_rotary_factor` is of lightning attention.
    return mixer if mixer.rope is None else replace(mixer, rope=replace(mixer.rope, rotary_dim=mixer.rope_dim))


def _lightning(config: JsonObject) -> LightningSpec:
    """Lightning attention, with the decays of the second layer."""
    heads, others = config.integer("num_attention_heads", maximum=MOST_HEADS), "num_kv_heads_for_linear_attn"
    if config.plain().get(others) not in (None, 0, heads):
        raise UnsupportedModel(f"`{others}` in config.json must be 0 or `num_attention_heads` ({heads})")
    size = config.integer("head_dim", maximum=MOST_STATE)
    groups, eps = config.integer("group_norm_size"), config.number("rms_norm_eps", default=1e-6)
    if heads % groups:
        raise config.error("group_norm_size", f"a divisor of `num_attention_heads` ({heads})")
    rope = parse_rope(config, size)
    if config.plain().get("rotary_dim") not in (None, rope.rotary_dim):
        raise config.error("rotary_dim", f"`partial_rotary_factor` of `head_dim` ({rope.rotary_dim})")
    qk_norm_eps = eps if config.boolean("use_qk_norm", default=True) else None
    return LightningSpec(slopes(heads), size, size**-0.5, eps, groups, rope, qk_norm_eps)


def _names(config: JsonObject) -> TensorNames:
    inside = "attention"
    return replace(
        ling_names(config),
        lightning_qkv=f"{inside}.query_key_value",
        lightning_layout="blocks",
        lightning_gate=f"{inside}.g_proj",
        lightning_norm=f"{inside}.g_norm",
        lightning_out=f"{inside}.dense",
        q_norm=f"{inside}.query_layernorm",
        k_norm=f"{inside}.key_layernorm",
    )


LING25 = Family(
    "Bailing MoE 2.5",
    _ling25,
    _names,
    {
        **SIZES,
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
        "group_norm_size": 4,
        "head_dim": 128,
        "n_group": 8,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.0,
        "rope_theta": 600000.0,
        "topk_group": 4,
    },
    older={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
    unread=("attention_bias", "mlp_bias"),
)

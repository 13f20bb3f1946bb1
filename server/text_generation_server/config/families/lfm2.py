"""LFM 2: short convolutions between gates, attention among them, and dense networks or mixtures of experts."""

from collections.abc import Callable
from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..recurrent import ShortConvSpec
from ..spec import DecoderSpec, DenseSpec, FeedForwardSpec, QkNormSpec
from .common import MOST_KERNEL, attention, decoder, gated, layer_types, pre_norm_layer, rms_norm
from .experts import divided, mixture
from .family import Family


def _dense(config: JsonObject) -> DecoderSpec:
    network = _adjusted(config, gated(config))
    return _decoder(config, lambda _: network)


def _mixture(config: JsonObject) -> DecoderSpec:
    """The first layers are dense."""
    experts = mixture(
        config,
        "num_experts",
        "moe_intermediate_size",
        score="sigmoid",
        norm=divided(config, default=True),
        scale=config.number("routed_scaling_factor", default=1.0),
        correction=config.boolean("use_expert_bias", default=True),
    )
    dense, first = gated(config), config.integer("num_dense_layers", default=2, minimum=0)
    return _decoder(config, lambda index: dense if index < first else experts)


def _decoder(config: JsonObject, ffn: Callable[[int], FeedForwardSpec]) -> DecoderSpec:
    mixers = {
        "full_attention": replace(attention(config), qk_norm=QkNormSpec(rms_norm(config))),
        "conv": ShortConvSpec(
            config.integer("hidden_size"),
            config.integer("conv_L_cache", default=3, minimum=2, maximum=MOST_KERNEL),
            config.boolean("conv_bias", default=False),
        ),
    }
    attends = config.token_ids("full_attn_idxs")
    is_listed = "full_attn_idxs" in config
    names = layer_types(config, mixers, lambda index: "full_attention" if index in attends or not is_listed else "conv")
    layers = tuple(pre_norm_layer(config, mixers[name], ffn(index)) for index, name in enumerate(names))
    return decoder(config, layers)


def _adjusted(config: JsonObject, network: DenseSpec) -> DenseSpec:
    """Two thirds of the size that the file gives, times a factor, rounded up to whole blocks."""
    if not config.boolean("block_auto_adjust_ff_dim", default=True):
        return network
    block = config.integer("block_multiple_of", default=256)
    inner = int(config.number("block_ffn_dim_multiplier", default=1.0) * (2 * network.inner // 3))
    return replace(network, inner=-(-inner // block) * block)


_NAMES = TensorNames(
    final_norm="embedding_norm",
    attention_norm="operator_norm",
    ffn_norm="ffn_norm",
    out="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    router="feed_forward.gate",
    router_correction="feed_forward.expert_bias",
    expert_gate="feed_forward.experts.{expert}.w1",
    expert_up="feed_forward.experts.{expert}.w3",
    expert_down="feed_forward.experts.{expert}.w2",
)
_DEFAULTS: dict[str, object] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
_KEYS = {"rms_norm_eps": "norm_eps", "tie_word_embeddings": "tie_embedding"}
LFM2 = Family(
    "LFM 2",
    _dense,
    _NAMES,
    _DEFAULTS,
    aliases={**_KEYS, "intermediate_size": "block_ff_dim"},
    unread=("attention_bias", "hidden_act", "mlp_bias", "partial_rotary_factor"),
)
LFM2_MOE = Family(
    "LFM 2 MoE",
    _mixture,
    _NAMES,
    {**_DEFAULTS, "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792},
    aliases=_KEYS,
    unread=("attention_bias", "hidden_act", "mlp_bias", "partial_rotary_factor"),
)

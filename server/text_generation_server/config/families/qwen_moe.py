"""Mixtures of Qwen 2 and 3: some layers may be dense, and Qwen 2 has a gated shared expert."""

from collections.abc import Callable
from dataclasses import replace

from ..json_object import JsonObject
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, MoeSpec
from .common import by_layer_type, decoder, gated, pre_norm_layer, window
from .experts import divided, mixture
from .family import Family
from .qwen2 import qwen2_attention, qwen3_attention

_DEFAULTS = {
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_position_embeddings": 32768,
}


def _qwen2(config: JsonObject) -> DecoderSpec:
    mixer = replace(qwen2_attention(config), qkv_bias=config.boolean("qkv_bias", default=True))
    experts = replace(
        _mixture(config), shared_inner=config.integer("shared_expert_intermediate_size"), shared_gate=True
    )
    first = config.integer("max_window_layers", default=28, minimum=0)
    kinds = _by_window(config, mixer, lambda index: index % 2 == 0 and index < first)
    return decoder(config, _with_experts(config, kinds, experts))


def _qwen3(config: JsonObject) -> DecoderSpec:
    kinds = _by_window(config, qwen3_attention(config), lambda _: True)
    return decoder(config, _with_experts(config, kinds, _mixture(config)))


def _mixture(config: JsonObject) -> MoeSpec:
    return mixture(config, "num_experts", "moe_intermediate_size", norm=divided(config, default=False))


def _by_window(config: JsonObject, mixer: AttentionSpec, is_sliding: Callable[[int], bool]) -> tuple[LayerSpec, ...]:
    """Dense layers, some of them with a window where the configuration wants any."""
    full = pre_norm_layer(config, mixer, gated(config))
    has_window = config.boolean("use_sliding_window", default=False) and "sliding_window" in config
    sliding = replace(full, mixer=replace(mixer, window=window(config))) if has_window else full
    return by_layer_type(config, full, sliding, lambda index: has_window and is_sliding(index))


def _with_experts(config: JsonObject, layers: tuple[LayerSpec, ...], experts: MoeSpec) -> tuple[LayerSpec, ...]:
    """The layers that are not listed as dense get experts, or every so many of them."""
    step = config.integer("decoder_sparse_step", default=1)
    dense = config.token_ids("mlp_only_layers")
    return tuple(
        replace(layer, ffn=experts) if index not in dense and (index + 1) % step == 0 else layer
        for index, layer in enumerate(layers)
    )


QWEN2_MOE = Family(
    "Qwen 2 MoE",
    _qwen2,
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 16,
        "max_window_layers": 28,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)
QWEN3_MOE = Family(
    "Qwen 3 MoE",
    _qwen3,
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    aliases={"num_experts": "num_local_experts"},
    unread=("layer_types", "mlp_bias", "partial_rotary_factor"),
)

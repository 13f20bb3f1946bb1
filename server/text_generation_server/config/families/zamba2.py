"""Zamba 2: state spaces (Mamba 2), some of which read a transformer block that several layers share."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, EmbeddingSpec, HeadSpec, LayerSpec, SharedBlockSpec
from .common import MOST_HEADS, activation, decoder, layer_types, rms_norm
from .family import Family
from .state_space import NAMES, state_space

_CALLING = "hybrid"
_USUAL = (6, 12, 18, 24, 30, 36, 42, 47, 51)
"""Layers that call a block, where the file does not say which do."""
_GATED_EPS = 1e-5
"""Epsilon of the norm of gated results of state spaces, which no key has."""
_STRETCH = 8.0
"""By how much positions of long contexts are stretched ("NTK-aware", by the base of RoPE)."""
_LONG = 16384
"""Positions of models whose context is extended so."""


def _zamba2(config: JsonObject) -> DecoderSpec:
    norm, steps = rms_norm(config), (config.number("time_step_min", default=0.001), math.inf)
    recurrent = LayerSpec(state_space(config, _GATED_EPS, steps), None, norm, None)
    attention, network = _attention(config), _network(config)
    rank = config.integer("adapter_rank", default=128)
    attention_rank = rank if config.boolean("use_shared_attention_adapter", default=False) else 0
    if attention_rank and attention.num_kv_heads != attention.num_heads:
        raise config.error("num_key_value_heads", "that of all heads, where `use_shared_attention_adapter` is true")
    ffn_rank = rank if config.boolean("use_shared_mlp_adapter", default=True) else 0
    kinds = _kinds(config)
    calls = [index for index, kind in enumerate(kinds) if kind == _CALLING]
    # Transformers ties blocks where it ties the head; else each layer may have weights of its own.
    tied = config.boolean("tie_word_embeddings", default=True)
    homes = {layer: group[0] if tied else layer for group in _sharing(config, calls) for layer in group}

    def layer(index: int) -> LayerSpec:
        if index not in homes:
            return recurrent
        call = calls.index(index)
        block = SharedBlockSpec(homes[index], call, attention, network, norm, attention_rank, ffn_rank)
        return replace(recurrent, shared=block)

    return decoder(
        config,
        tuple(map(layer, range(len(kinds)))),
        norm,
        EmbeddingSpec(kept=bool(calls)),
        HeadSpec(tied=tied),
    )


def _kinds(config: JsonObject) -> tuple[str, ...]:
    def usual(index: int) -> str:
        return _CALLING if index in _USUAL else "linear_attention"

    return layer_types(config, ("linear_attention", _CALLING), usual)


def _sharing(config: JsonObject, calls: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The layers that call each block: blocks take turns."""
    blocks = min(config.integer("num_mem_blocks", default=1), max(len(calls), 1))
    return tuple(tuple(calls[block::blocks]) for block in range(blocks) if calls)


def _attention(config: JsonObject) -> AttentionSpec:
    """Its heads share twice the hidden size."""
    width, count = 2 * config.integer("hidden_size"), config.integer("num_attention_heads", maximum=MOST_HEADS)
    if width % (2 * count):
        raise config.error("num_attention_heads", f"such that 2 * `hidden_size` ({width}) is even for each")
    kv = config.integer("num_key_value_heads", default=count)
    if count % kv:
        raise config.error("num_key_value_heads", f"a divisor of `num_attention_heads` ({count})")
    size = width // count
    rope = _rope(config, size) if config.boolean("use_mem_rope", default=False) else None
    return AttentionSpec(count, kv, size, scale=(size / 2) ** -0.5, rope=rope)


def _rope(config: JsonObject, size: int) -> RopeSpec:
    rope = parse_rope(config, size)
    if not _is_long(config) or size == 2:
        return rope
    return replace(rope, theta=rope.theta * _STRETCH ** (size / (size - 2)))


def _is_long(config: JsonObject) -> bool:
    return config.boolean("use_long_context", default=False)


def _positions(config: JsonObject) -> int | None:
    return _LONG if _is_long(config) else None


def _network(config: JsonObject) -> DenseSpec:
    bias = config.boolean("use_bias", default=False)
    inner = config.integer("intermediate_size", default=4 * config.integer("hidden_size"))
    return DenseSpec(inner, activation(config), in_bias=bias, out_bias=bias)


def _names(config: JsonObject) -> TensorNames:
    calls = [index for index, kind in enumerate(_kinds(config)) if kind == _CALLING]
    block = TensorNames(
        attention_norm="shared_transformer.input_layernorm",
        q="shared_transformer.self_attn.q_proj",
        k="shared_transformer.self_attn.k_proj",
        v="shared_transformer.self_attn.v_proj",
        out="shared_transformer.self_attn.o_proj",
        ffn_norm="shared_transformer.pre_ff_layernorm",
        gate_up="shared_transformer.feed_forward.gate_up_proj",
        down="shared_transformer.feed_forward.down_proj",
    )
    return replace(
        NAMES,
        final_norm="final_layernorm",
        insides=dict.fromkeys(calls, "mamba_decoder."),
        block=block,
        sharing=_sharing(config, calls),
    )


ZAMBA2 = Family(
    "Zamba 2",
    _zamba2,
    _names,
    {
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "mamba_d_conv": 4,
        "mamba_d_state": 64,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "max_position_embeddings": 4096,
        "n_mamba_heads": 8,
        "rms_norm_eps": 1e-5,
    },
    aliases={
        "layer_types": "layers_block_type",
        "mamba_num_heads": "n_mamba_heads",
        "n_groups": "mamba_ngroups",
        "ssm_state_size": "mamba_d_state",
        "conv_kernel": "mamba_d_conv",
        "use_bias": "add_bias_linear",
    },
    positions=_positions,
    unread=("head_dim", "partial_rotary_factor", "time_step_limit", "use_conv_bias"),
)

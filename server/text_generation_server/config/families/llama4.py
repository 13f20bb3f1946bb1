"""Llama 4: most layers attend within stretches of positions, the others have no RoPE and queries that grow with their
position, and the weight of an expert multiplies its input.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..rotary import QueryGrowth
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, MoeSpec, NormSpec, QkNormSpec
from .common import MOST_LAYERS, activation, attention, decoder, layer_types, pre_norm_layer
from .experts import mixture
from .family import Family

_MOST_SLOPE = 1e3
"""Of the growth of queries: beyond, they would leave the range of numbers of 16 bits."""
_CHUNKED, _FULL = "chunked_attention", "full_attention"


def _llama4(config: JsonObject) -> DecoderSpec:
    if config.integer("num_experts_per_tok") != 1:
        raise UnsupportedModel("`num_experts_per_tok` in config.json must be 1 for this family: weights scale inputs")
    count, step = config.integer("num_hidden_layers", maximum=MOST_LAYERS), config.integer("interleave_moe_layer_step")
    mixed = config.layer_numbers("moe_layers", count) if "moe_layers" in config else range(step - 1, count, step)
    dense = DenseSpec(config.integer("intermediate_size_mlp"), activation(config))
    experts, turned = _experts(config), _rotated(config, count)
    kinds = layer_types(config, (_CHUNKED, _FULL), lambda index: _CHUNKED if turned[index] else _FULL)
    mixers = [_mixer(config, turned[index], kinds[index] == _CHUNKED) for index in range(count)]
    return decoder(
        config,
        tuple(pre_norm_layer(config, mixers[index], experts if index in mixed else dense) for index in range(count)),
    )


def _rotated(config: JsonObject, count: int) -> tuple[int, ...]:
    """Whether each layer has RoPE. An empty list is none."""
    if config.plain().get("no_rope_layers"):
        return config.integers("no_rope_layers", count, 1)
    interval = config.integer("no_rope_layer_interval")
    return tuple(int((index + 1) % interval != 0) for index in range(count))


def _mixer(config: JsonObject, is_rotated: int, is_chunked: bool) -> AttentionSpec:
    stretch = config.integer("attention_chunk_size") if is_chunked and "attention_chunk_size" in config else 0
    mixer: AttentionSpec = replace(attention(config), rope=None, stretch=stretch, query_growth=_growth(config))
    if is_rotated:
        mixer = replace(mixer, rope=parse_rope(config, mixer.head_dim, interleaved=True), query_growth=None)
        if config.boolean("use_qk_norm", default=True):
            norm = NormSpec(config.number("rms_norm_eps"), weight=False)
            mixer = replace(mixer, qk_norm=QkNormSpec(norm, after_rope=True))
    elif mixer.qkv_bias and mixer.query_growth is not None:
        raise UnsupportedModel("`attention_bias` in config.json must be false beside `attn_temperature_tuning`")
    return mixer


def _growth(config: JsonObject) -> QueryGrowth | None:
    """A position counts as the number of tokens up to it."""
    if not config.boolean("attn_temperature_tuning", default=True) or config.plain().get("attn_scale") == 0:
        return None
    slope = config.number("attn_scale", default=0.1, maximum=_MOST_SLOPE)
    return QueryGrowth(slope, config.integer("floor_scale", minimum=1), first=1)


def _experts(config: JsonObject) -> MoeSpec:
    experts = mixture(config, "num_local_experts", "intermediate_size")
    return replace(experts, shared_inner=experts.inner, weighs_inputs=True)


LLAMA4 = Family(
    "Llama 4",
    _llama4,
    TensorNames(
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        router="feed_forward.router",
        expert_gate="feed_forward.experts.{expert}.gate_proj",
        expert_up="feed_forward.experts.{expert}.up_proj",
        expert_down="feed_forward.experts.{expert}.down_proj",
        experts_stack=("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
        stack_layout="transposed",
        shared_gate="feed_forward.shared_expert.gate_proj",
        shared_up="feed_forward.shared_expert.up_proj",
        shared_down="feed_forward.shared_expert.down_proj",
    ),
    {
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "intermediate_size_mlp": 16384,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "rope_theta": 5e5,
        "max_position_embeddings": 131072,
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)

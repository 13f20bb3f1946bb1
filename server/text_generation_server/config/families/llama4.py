"""Llama 4: most layers attend within chunks of positions, the others have no RoPE, and the weight of an expert
multiplies its input. Within the first chunk attention is that of all positions, and queries do not grow yet: longer
contexts are not served.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, MoeSpec, NormSpec, QkNormSpec
from .common import MOST_LAYERS, activation, attention, decoder, pre_norm_layer
from .experts import mixture
from .family import Family


def _llama4(config: JsonObject) -> DecoderSpec:
    if config.integer("num_experts_per_tok") != 1:
        raise UnsupportedModel("`num_experts_per_tok` in config.json must be 1 for this family: weights scale inputs")
    count, step = config.integer("num_hidden_layers", maximum=MOST_LAYERS), config.integer("interleave_moe_layer_step")
    mixed = config.layer_numbers("moe_layers", count) if "moe_layers" in config else range(step - 1, count, step)
    dense = DenseSpec(config.integer("intermediate_size_mlp"), activation(config))
    experts, turned = _experts(config), _rotated(config, count)
    layers = tuple(_layer(config, turned[index], experts if index in mixed else dense) for index in range(count))
    return replace(decoder(config, layers), longest=_longest(config))


def _rotated(config: JsonObject, count: int) -> tuple[int, ...]:
    """Whether each layer has RoPE. An empty list is none."""
    if config.plain().get("no_rope_layers"):
        return config.integers("no_rope_layers", count, 1)
    interval = config.integer("no_rope_layer_interval")
    return tuple(int((index + 1) % interval != 0) for index in range(count))


def _layer(config: JsonObject, is_rotated: int, ffn: DenseSpec | MoeSpec) -> LayerSpec:
    mixer: AttentionSpec = replace(attention(config), rope=None)
    if is_rotated:
        mixer = replace(mixer, rope=parse_rope(config, mixer.head_dim, interleaved=True))
        if config.boolean("use_qk_norm", default=True):
            norm = NormSpec(config.number("rms_norm_eps"), weight=False)
            mixer = replace(mixer, qk_norm=QkNormSpec(norm, after_rope=True))
    return pre_norm_layer(config, mixer, ffn)


def _experts(config: JsonObject) -> MoeSpec:
    experts = mixture(config, "num_local_experts", "intermediate_size")
    return replace(experts, shared_inner=experts.inner, weighs_inputs=True)


def _longest(config: JsonObject) -> int:
    """Positions of the first chunk at which queries are not multiplied either."""
    lengths = [config.integer("max_position_embeddings")]
    if "attention_chunk_size" in config:
        lengths.append(config.integer("attention_chunk_size"))
    if config.boolean("attn_temperature_tuning", default=True):
        lengths.append(config.integer("floor_scale", minimum=2) - 1)
    return min(lengths)


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

"""Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers are one part each, a state space (Mamba 2), attention, a network,
or a mixture of experts.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, MoeSpec, NormSpec
from .common import ACTIVATIONS, MOST_LAYERS, OLDER_TYPES, Heads, decoder, plain
from .deepseek import sigmoid_routed
from .family import Family
from .state_space import state_space

_LETTERS: Mapping[str, str] = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Of `hybrid_override_pattern`."""


def _nemotron_h(config: JsonObject) -> DecoderSpec:
    norm = NormSpec(config.number("layer_norm_epsilon", default=1e-5))
    network = plain(config, "intermediate_size", "mlp_hidden_act", config.boolean("mlp_bias", default=False))
    steps = config.number("time_step_min", default=0.001), math.inf
    parts = {
        "linear_attention": LayerSpec(state_space(config, norm.eps, steps), None, norm, None),
        "full_attention": LayerSpec(_attention(config), None, norm, None),
        "mlp": LayerSpec(None, network, None, norm),
    }
    kinds = _kinds(config)
    if "moe" in kinds:
        parts["moe"] = LayerSpec(None, _experts(config), None, norm)
    if not kinds or any(kind not in parts for kind in kinds):
        raise config.error("layers_block_type", f"a list of names out of {', '.join(parts)}")
    layers = tuple(parts[kind] for kind in kinds)
    return decoder(config.with_values({"num_hidden_layers": len(layers)}), layers, norm)


def _kinds(config: JsonObject) -> list[str]:
    if "hybrid_override_pattern" in config and "layers_block_type" not in config:
        pattern = config.string("hybrid_override_pattern")
        if not 0 < len(pattern) <= MOST_LAYERS or any(letter not in _LETTERS for letter in pattern):
            raise config.error("hybrid_override_pattern", f"made of the letters {' '.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in pattern]
    names = config.strings("layers_block_type" if "layers_block_type" in config else "layer_types")
    return [OLDER_TYPES.get(name, name) for name in names]


def _experts(config: JsonObject) -> MoeSpec:
    """Networks without a gate, chosen as those of DeepSeek V3."""
    if config.boolean("mlp_bias", default=False):
        raise UnsupportedModel("`mlp_bias` in config.json must be false where there are experts")
    return replace(
        sigmoid_routed(config),
        activation=config.choice("mlp_hidden_act", ACTIVATIONS),
        shared_inner=config.integer("moe_shared_expert_intermediate_size"),
        gated=False,
        latent=config.integer("moe_latent_size", default=0, minimum=0),
    )


def _attention(config: JsonObject) -> AttentionSpec:
    heads = Heads.of(config)
    return AttentionSpec(heads.count, heads.kv, heads.size, scale=heads.size**-0.5, rope=None)


NEMOTRON_H = Family(
    "Nemotron-H, Nano 2 and 3",
    _nemotron_h,
    TensorNames(
        prefixes=("backbone.", "model."),
        embedding="embeddings",
        final_norm="norm_f",
        attention_norm="norm",
        ffn_norm="norm",
        q="mixer.q_proj",
        k="mixer.k_proj",
        v="mixer.v_proj",
        out="mixer.o_proj",
        up="mixer.up_proj",
        down="mixer.down_proj",
        router="mixer.gate",
        router_correction="mixer.gate.e_score_correction_bias",
        expert_up="mixer.experts.{expert}.up_proj",
        expert_down="mixer.experts.{expert}.down_proj",
        shared_up="mixer.shared_experts.up_proj",
        shared_down="mixer.shared_experts.down_proj",
    ),
    {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "mlp_hidden_act": "relu2",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
    aliases={
        "head_dim": "attention_head_dim",
        "n_groups": "mamba_n_groups",
        "conv_kernel": "mamba_d_conv",
    },
    older={"layer_norm_epsilon": "rms_norm_eps"},
    unread=("mamba_expand",),
)

"""Nemotron-H and Nemotron Nano 2: layers are one part each, a state space (Mamba 2), attention, or a network."""

import math
from collections.abc import Mapping

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, NormSpec
from .common import MOST_LAYERS, OLDER_TYPES, Heads, decoder, plain
from .family import Family
from .state_space import state_space

_LETTERS: Mapping[str, str] = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Of `hybrid_override_pattern`."""


def _nemotron_h(config: JsonObject) -> DecoderSpec:
    norm = NormSpec(config.number("layer_norm_epsilon", default=1e-5))
    network = plain(config, "intermediate_size", "mlp_hidden_act", config.boolean("mlp_bias", default=False))
    steps = config.number("time_step_min", default=0.001), math.inf
    parts = {
        "linear_attention": LayerSpec(state_space(config, norm.eps, "group", steps), None, norm, None),
        "full_attention": LayerSpec(_attention(config), None, norm, None),
        "mlp": LayerSpec(None, network, None, norm),
    }
    kinds = _kinds(config)
    if "moe" in kinds:
        raise UnsupportedModel("layers of type 'moe' in config.json: experts without a gate are not implemented")
    if not kinds or any(kind not in parts for kind in kinds):
        raise config.error("layers_block_type", f"a list of names out of {', '.join(parts)}")
    layers = tuple(parts[kind] for kind in kinds)
    return decoder(config.with_values({"num_hidden_layers": len(layers)}), layers, norm)


def _kinds(config: JsonObject) -> list[str]:
    if "hybrid_override_pattern" in config:
        pattern = config.string("hybrid_override_pattern")
        if not 0 < len(pattern) <= MOST_LAYERS or any(letter not in _LETTERS for letter in pattern):
            raise config.error("hybrid_override_pattern", f"made of the letters {' '.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in pattern]
    names = config.strings("layers_block_type" if "layers_block_type" in config else "layer_types")
    return [OLDER_TYPES.get(name, name) for name in names]


def _attention(config: JsonObject) -> AttentionSpec:
    heads = Heads.of(config)
    return AttentionSpec(heads.count, heads.kv, heads.size, scale=heads.size**-0.5, rope=None)


NEMOTRON_H = Family(
    "Nemotron-H and Nano 2",
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
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
    aliases={
        "head_dim": "attention_head_dim",
        "n_groups": "mamba_n_groups",
        "conv_kernel": "mamba_d_conv",
        "layer_norm_epsilon": "rms_norm_eps",
    },
)

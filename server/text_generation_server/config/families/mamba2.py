"""Mamba 2, whose layers are mixers alone, and Bamba, which adds attention layers and feed-forward networks."""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec, LayerSpec, NormSpec
from .common import MOST_LAYERS, attention, decoder, gated, pre_norm_layer
from .family import Family
from .mamba import LONGEST
from .mamba import NAMES as OF_MAMBA
from .state_space import KEYS, NAMES, state_space


def _mamba2(config: JsonObject) -> DecoderSpec:
    norm = NormSpec(config.number("layer_norm_epsilon", default=1e-5))
    return decoder(config, LayerSpec(state_space(config, norm.eps), None, norm, None), norm)


def _bamba(config: JsonObject) -> DecoderSpec:
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    recurrent = state_space(config, config.number("rms_norm_eps", default=1e-5))
    full, network = attention(config), gated(config)
    attends = config.token_ids("attn_layer_indices")
    return decoder(
        config,
        tuple(pre_norm_layer(config, full if index in attends else recurrent, network) for index in range(count)),
    )


MAMBA2 = Family(
    "Mamba 2",
    _mamba2,
    OF_MAMBA,
    {
        "num_heads": 128,
        "head_dim": 64,
        "n_groups": 8,
        "state_size": 128,
        "conv_kernel": 4,
        "eos_token_id": 2,
        "max_position_embeddings": LONGEST,
    },
    aliases={
        "mamba_num_heads": "num_heads",
        "mamba_head_dim": "head_dim",
        "ssm_state_size": "state_size",
        "mamba_hidden_act": "hidden_act",
    },
)
BAMBA_NAMES = replace(
    NAMES,
    final_norm="final_layernorm",
    ffn_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)
"""Of Falcon H1 too."""
BAMBA = Family(
    "Bamba",
    _bamba,
    BAMBA_NAMES,
    {
        "num_key_value_heads": 8,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 262144,
        "eos_token_id": 2,
    },
    aliases=KEYS,
)

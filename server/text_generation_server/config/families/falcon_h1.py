"""Falcon H1: attention and a state space (Mamba 2) beside each other in every layer, and numbers that multiply the
outputs of most matrices (muP, Yang et al., 2022).
"""

from dataclasses import replace
from typing import Literal

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..recurrent import Mamba2Spec
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, EmbeddingSpec, HeadSpec
from .common import MOST_HEADS, MOST_STATE, attention, decoder, gated, pre_norm_layer
from .family import Family
from .mamba2 import BAMBA_NAMES
from .state_space import KEYS, state_space

_BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
"""Multipliers apply to sums with a bias, which no published model has."""


def _falcon_h1(config: JsonObject) -> DecoderSpec:
    for key in _BIASES:
        if config.boolean(key, default=False):
            raise UnsupportedModel(f"`{key}` in config.json must be false for this family")
    factors = _factor(config, "attention_in") * _factor(config, "attention_out"), _factor(config, "ssm_out")
    layer = replace(
        pre_norm_layer(config, _attention(config), _network(config)),
        state_space=_state_space(config),
        mixer_factors=factors,
    )
    tied = config.boolean("tie_word_embeddings", default=False)
    head = HeadSpec(tied=tied, scale=_factor(config, "lm_head"))
    return decoder(config, layer, embedding=EmbeddingSpec(scale=_factor(config, "embedding")), head=head)


def _factor(config: JsonObject, name: str) -> float:
    return config.number(f"{name}_multiplier", default=1.0)


def _attention(config: JsonObject) -> AttentionSpec:
    """Numbers that multiply queries and keys multiply their scores, and those of values the output."""
    plain = attention(config)
    return replace(plain, scale=plain.scale * _factor(config, "attention_in") ** 2 * _factor(config, "key"))


def _network(config: JsonObject) -> DenseSpec:
    gates, outputs = config.numbers("mlp_multipliers", 2) if "mlp_multipliers" in config else (1.0, 1.0)
    return replace(gated(config), gate_factor=gates, out_factor=outputs)


def _state_space(config: JsonObject) -> Mamba2Spec:
    key, own = "ssm_multipliers", _factor(config, "ssm_in")
    gates, channels, writes, reads, steps = config.numbers(key, 5) if key in config else (1.0,) * 5
    norm: Literal["gate first", "norm first"] | None = None
    if config.boolean("mamba_rms_norm", default=False):
        norm = "norm first" if config.boolean("mamba_norm_before_gate", default=True) else "gate first"
    plain = state_space(config, config.number("rms_norm_eps"), head_dim=_head_dim(config))
    return replace(
        plain,
        norm=norm,
        wide_norm=True,
        factors=(own * gates, own * channels, own * writes, own * reads, own * steps),
    )


def _head_dim(config: JsonObject) -> int:
    """Channels of a head of the state space, which files may leave to its width."""
    stored, heads = config.plain(), config.integer("mamba_num_heads", maximum=MOST_HEADS)
    if "mamba_d_ssm" in stored and stored["mamba_d_ssm"] is None:
        width = config.integer("mamba_expand", maximum=64) * config.integer("hidden_size")
    else:
        width = config.integer("mamba_d_ssm")
    if width % heads:
        raise config.error("mamba_num_heads", f"a divisor of the width of the state space ({width})")
    own = width // heads
    if stored.get("mamba_d_head", "auto") != "auto" and config.integer("mamba_head_dim") != own:
        raise config.error("mamba_head_dim", f"the width of the state space by its heads ({own})")
    if own > MOST_STATE:
        raise config.error("mamba_d_ssm", f"at most {MOST_STATE} for each of {heads} heads")
    return own


FALCON_H1 = Family(
    "Falcon H1",
    _falcon_h1,
    BAMBA_NAMES,
    {
        "num_key_value_heads": 8,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "eos_token_id": 2,
    },
    aliases=KEYS,
    unread=("partial_rotary_factor",),
)

"""Gemma 1, 2 and 3: norm weights stored as w - 1, scaled embeddings; versions 2 and 3 normalise outputs too."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, EmbeddingSpec, HeadSpec, LayerSpec, NormSpec, QkNormSpec
from .common import (
    ACTIVATIONS,
    Heads,
    attention,
    by_layer_type,
    decoder,
    gated,
    optional,
    pattern,
    rms_norm,
    sandwich_layer,
    window,
    with_mixer,
)
from .family import Family

_NAMES = TensorNames(ffn_norm="pre_feedforward_layernorm")
_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}
_DEFAULTS_2 = {**_DEFAULTS, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096}


def _norm(config: JsonObject) -> NormSpec:
    return replace(rms_norm(config), one_plus=True)


def _ffn(config: JsonObject) -> DenseSpec:
    """Files of version 1 name the exact gelu under `hidden_act`, which the models were not trained with."""
    return replace(gated(config), activation=config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"))


def _model(config: JsonObject, layers: LayerSpec | tuple[LayerSpec, ...]) -> DecoderSpec:
    tied = config.boolean("tie_word_embeddings", default=True)
    return decoder(
        config,
        layers,
        _norm(config),
        EmbeddingSpec(scale=config.integer("hidden_size") ** 0.5, scale_rounded=True),
        HeadSpec(tied=tied, softcap=optional(config, "final_logit_softcapping")),
    )


def _gemma(config: JsonObject) -> DecoderSpec:
    return _model(config, LayerSpec(attention(config), _ffn(config), _norm(config), _norm(config)))


def _sandwich(config: JsonObject, mixer: AttentionSpec) -> LayerSpec:
    scale = config.number("query_pre_attn_scalar") ** -0.5
    mixer = replace(mixer, scale=scale, softcap=optional(config, "attn_logit_softcapping"))
    return sandwich_layer(mixer, _ffn(config), _norm(config))


def _gemma2(config: JsonObject) -> DecoderSpec:
    full = _sandwich(config, attention(config))
    sliding = with_mixer(full, window=window(config))
    return _model(config, by_layer_type(config, full, sliding, lambda index: index % 2 == 0))


def _gemma3(config: JsonObject) -> DecoderSpec:
    """Layers with a window have a base of their own and are never stretched."""
    if config.boolean("use_bidirectional_attention", default=False):
        raise UnsupportedModel("`use_bidirectional_attention` in config.json must be false for this family")
    size = Heads.of(config).size
    full = _sandwich(config, replace(attention(config), qk_norm=QkNormSpec(_norm(config))))
    full = with_mixer(full, rope=parse_rope(config, size, layer_type="full_attention"))
    local = parse_rope(config, size, layer_type="sliding_attention", scaled=False, theta_key="rope_local_base_freq")
    sliding = with_mixer(full, rope=local, window=window(config))
    return _model(config, by_layer_type(config, full, sliding, lambda index: (index + 1) % pattern(config, 6) != 0))


GEMMA = Family(
    "Gemma",
    _gemma,
    defaults={**_DEFAULTS, "num_key_value_heads": 16, "max_position_embeddings": 8192},
    unread=("final_logit_softcapping", "mlp_bias", "partial_rotary_factor"),
)
GEMMA2 = Family(
    "Gemma 2",
    _gemma2,
    _NAMES,
    {
        **_DEFAULTS_2,
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)
GEMMA3 = Family(
    "Gemma 3 (text)",
    _gemma3,
    _NAMES,
    {**_DEFAULTS_2, "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    unread=("attn_logit_softcapping", "mlp_bias"),
)

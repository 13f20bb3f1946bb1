"""Command R, R+ and R7B (Cohere 1 and 2): attention and feed-forward network in parallel, RoPE in interleaved pairs."""

from dataclasses import replace

from ..json_object import JsonObject
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, HeadSpec, LayerSpec, QkNormSpec
from .common import Heads, attention, by_layer_type, decoder, gated, layer_norm, pattern, window
from .family import Family

_DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
}


def _mixer(config: JsonObject) -> AttentionSpec:
    return replace(attention(config), rope=parse_rope(config, Heads.of(config).size, interleaved=True))


def _model(config: JsonObject, layers: LayerSpec | tuple[LayerSpec, ...]) -> DecoderSpec:
    tied, scale = config.boolean("tie_word_embeddings", default=True), config.number("logit_scale")
    return decoder(config, layers, layer_norm(config, bias=False), head=HeadSpec(tied=tied, scale=scale))


def _layer(config: JsonObject, mixer: AttentionSpec) -> LayerSpec:
    return LayerSpec(mixer, gated(config), layer_norm(config, bias=False), None, parallel=True)


def _cohere(config: JsonObject) -> DecoderSpec:
    mixer = _mixer(config)
    if config.boolean("use_qk_norm", default=False):
        mixer = replace(mixer, qk_norm=QkNormSpec(layer_norm(config, bias=False), over="heads"))
    return _model(config, _layer(config, mixer))


def _cohere2(config: JsonObject) -> DecoderSpec:
    """Layers that attend to everything have no rotary embedding."""
    mixer = _mixer(config)
    full = _layer(config, replace(mixer, rope=None))
    sliding = _layer(config, replace(mixer, window=window(config)))
    return _model(config, by_layer_type(config, full, sliding, lambda index: (index + 1) % pattern(config, 4) != 0))


COHERE = Family(
    "Cohere Command R",
    _cohere,
    defaults={**_DEFAULTS, "rope_theta": 5e5},
    # Files of the first models have 8192 under the usual name, and were trained with what this one says.
    aliases={"max_position_embeddings": "model_max_length"},
    unread=("mlp_bias", "partial_rotary_factor"),
)
COHERE2 = Family(
    "Cohere Command R7B and A",
    _cohere2,
    defaults={**_DEFAULTS, "sliding_window": 4096},
    unread=("mlp_bias", "partial_rotary_factor"),
)

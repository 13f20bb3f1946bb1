"""OLMo 2 and 3: outputs are normalised, and QK norm spans the whole width."""

from dataclasses import replace

from ..json_object import JsonObject
from ..rope import parse_rope
from ..spec import DecoderSpec, LayerSpec, NormSpec, QkNormSpec
from .common import Heads, attention, by_layer_type, decoder, gated, rms_norm, window, with_mixer
from .family import Family

_DEFAULTS = {"rms_norm_eps": 1e-5}


def _norm(config: JsonObject) -> NormSpec:
    return replace(rms_norm(config), wide=True)


def _layer(config: JsonObject) -> LayerSpec:
    norm = _norm(config)
    mixer = replace(attention(config), qk_norm=QkNormSpec(norm, over="width"))
    return LayerSpec(mixer, gated(config), None, None, norm, norm)


def _olmo2(config: JsonObject) -> DecoderSpec:
    return decoder(config, _layer(config), _norm(config))


def _olmo3(config: JsonObject) -> DecoderSpec:
    """Only layers that attend to everything stretch their positions."""
    layer, size = _layer(config), Heads.of(config).size
    full = with_mixer(layer, rope=parse_rope(config, size, layer_type="full_attention"))
    rope = parse_rope(config, size, layer_type="sliding_attention", scaled=False)
    sliding = with_mixer(layer, rope=rope, window=window(config))
    layers = by_layer_type(config, full, sliding, lambda index: (index + 1) % 4 != 0)
    return decoder(config, layers, _norm(config))


OLMO2 = Family(
    "OLMo 2",
    _olmo2,
    defaults=_DEFAULTS,
    unread=("mlp_bias", "partial_rotary_factor"),
)
OLMO3 = Family(
    "OLMo 3", _olmo3, defaults={**_DEFAULTS, "sliding_window": 4096, "rope_theta": 5e5}, unread=("mlp_bias",)
)

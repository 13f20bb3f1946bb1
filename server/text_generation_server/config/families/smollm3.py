"""SmolLM 3: some layers have no rotary embedding."""

from ..json_object import JsonObject
from ..spec import DecoderSpec, LayerSpec
from .common import attention, by_layer_type, decoder, gated, pre_norm_layer, window, with_mixer
from .family import Family

_DEFAULTS = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2e6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "no_rope_layer_interval": 4,
}


def _smollm3(config: JsonObject) -> DecoderSpec:
    full = pre_norm_layer(config, attention(config), gated(config))
    has_window = config.boolean("use_sliding_window", default=False) and "sliding_window" in config
    sliding = with_mixer(full, window=window(config)) if has_window else full
    rotates = _rotates(config)
    layers = by_layer_type(config, full, sliding, lambda index: has_window and not rotates[index])
    return decoder(config, tuple(_without_rope(layer, rotates) for layer, rotates in zip(layers, rotates, strict=True)))


def _without_rope(layer: LayerSpec, rotates: bool) -> LayerSpec:
    return layer if rotates else with_mixer(layer, rope=None)


def _rotates(config: JsonObject) -> list[bool]:
    """Which layers rotate queries and keys. `no_rope_layers` has 1 for those that do."""
    count = config.integer("num_hidden_layers")
    if "no_rope_layers" in config:
        return [flag == 1 for flag in config.integers("no_rope_layers", count, maximum=1)]
    interval = config.integer("no_rope_layer_interval")
    return [(index + 1) % interval != 0 for index in range(count)]


SMOLLM3 = Family("SmolLM 3", _smollm3, defaults=_DEFAULTS, unread=("partial_rotary_factor",))

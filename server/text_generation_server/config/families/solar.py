"""Solar Pro of Upstage (22B): Llama in which some layers read a mix with what earlier layers read. Solar 10.7B is Llama
itself.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..spec import DecoderSpec, SkipSpec
from .common import MOST_LAYERS
from .family import Family
from .llama import llama_decoder

_KEPT, _MIXED = ("bskcn_1", "bskcn_2"), ("bskcn_3", "bskcn_4")
"""Keys of the layers that keep the residual stream, in one place each, and of those that mix it in again."""
_SHARES = "bskcn_tv"
"""The share of what was kept, in training and after it."""


def _solar(config: JsonObject) -> DecoderSpec:
    share = config.numbers(_SHARES, 2, zero=True)[1]
    if share > 1:
        raise config.error(_SHARES, "two numbers from 0 to 1")
    kept, mixed = ([config.layer_numbers(key, MOST_LAYERS) for key in keys] for keys in (_KEPT, _MIXED))
    for place, key in enumerate(_MIXED):
        if min(mixed[place], default=MOST_LAYERS) < min(kept[place], default=MOST_LAYERS):
            raise config.error(key, f"layers from the first one of `{_KEPT[place]}` on")
    alone = llama_decoder(config)

    def skip(index: int) -> SkipSpec | None:
        keeps, mixes = (tuple(place for place in (0, 1) if index in each[place]) for each in (kept, mixed))
        return SkipSpec(keeps, mixes, share) if keeps or mixes else None

    layers = tuple(replace(layer, skip=skip(index)) for index, layer in enumerate(alone.layers))
    head = replace(alone.head, scale=config.number("logit_scale", default=1.0))
    return replace(alone, layers=layers, head=head)


SOLAR = Family(
    "Solar",
    _solar,
    defaults={
        "bskcn_1": [12, 20, 32, 44],
        "bskcn_2": [20, 32],
        "bskcn_3": [16, 24, 36, 48],
        "bskcn_4": [28, 40],
        "bskcn_tv": [0.9, 0.8],
    },
    unread=("partial_rotary_factor",),
)

"""LLaVA 1.6 (NeXT), LLaVA-OneVision and Granite Vision: LLaVA with tiles of a large image."""

from dataclasses import replace

from ....errors import UnsupportedModel
from ...vision import TileSpec, VisionSpec
from .family import VisionFamily, Whole
from .llava import LLAVA

_MOST_TILES = 10_000
_RATIO = "anyres_max_"


def _next(whole: Whole) -> VisionSpec:
    spec = LLAVA.read(whole)
    if not spec.tower.image or spec.levels[0].keeps_class:
        raise UnsupportedModel(
            f"{whole.config.source}: tiles need a tower of one size without positions for class tokens"
        )
    return replace(spec, tiles=TileSpec(), scale=_scale(whole))


def _scale(whole: Whole) -> float:
    """Returns by how much Granite, as the part of another model, multiplies all hidden states that it begins with."""
    return whole.text.number("embedding_multiplier", default=1.0)


def _onevision(whole: Whole) -> VisionSpec:
    ratio = whole.config.string("vision_aspect_ratio")
    number = ratio.removeprefix(_RATIO)
    if number == ratio or not number.isdecimal() or not 0 < int(number) <= _MOST_TILES:
        raise whole.config.error("vision_aspect_ratio", f"{_RATIO} and a number of tiles")
    return replace(_next(whole), tiles=TileSpec(int(number)))


LLAVA_NEXT = VisionFamily(_next, of_whole=LLAVA.of_whole)
LLAVA_ONEVISION = VisionFamily(
    _onevision,
    {"model_type": "siglip_vision_model"},
    of_whole={
        **LLAVA.of_whole,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
        "image_token_index": 151646,
    },
)
"""Where a prompt has several images, each has its first view alone."""

"""LLaVA 1.5 (Liu et al., 2023), and Pixtral 12B in the layout of Transformers: a tower and two linear layers."""

from ....errors import UnsupportedModel
from ...vision import LevelSpec, VisionSpec
from .clip import BEHIND, CLIP_DEFAULTS, NAMES, SIGLIP_DEFAULTS, clip_tower, siglip_tower, unread
from .family import VisionFamily, Whole, activation, blocks, feature_layers, keeps_class, linear
from .pixtral import PIXTRAL_DEFAULTS, PIXTRAL_NAMES, pixtral_tower
from .pixtral import unread as unread_pixtral

_TOWERS = {
    "clip_vision_model": CLIP_DEFAULTS,
    "siglip_vision_model": SIGLIP_DEFAULTS,
    "pixtral": PIXTRAL_DEFAULTS,
}


def _llava(whole: Whole) -> VisionSpec:
    config = whole.config
    kind = whole.vision.string("model_type", default="clip_vision_model")
    if kind not in _TOWERS:
        raise UnsupportedModel(f"a vision tower of type {kind!r} is not supported; known are {', '.join(_TOWERS)}")
    vision = whole.vision.for_family(_TOWERS[kind], {})
    total = blocks(vision)
    reads = feature_layers(config, total)
    count, drops_first = max(1, *reads), not keeps_class(config)
    if kind == "clip_vision_model":
        tower, names, behind = clip_tower(vision, count), NAMES, (*BEHIND, *unread(count, total))
    elif drops_first:
        raise UnsupportedModel(
            f"{config.source}: `vision_feature_select_strategy` must be 'full' for a tower without a class token"
        )
    elif kind == "pixtral":
        tower, names, behind = pixtral_tower(vision, count), PIXTRAL_NAMES, unread_pixtral(count, total)
    else:
        tower, names, behind = siglip_tower(vision, count), NAMES, (*BEHIND, *unread(count, total))
    bias = config.boolean("multimodal_projector_bias", default=True)
    level = LevelSpec(
        reads=reads,
        linears=(
            linear("linear_1", whole.hidden, bias, activation(config, "projector_hidden_act")),
            linear("linear_2", whole.hidden, bias),
        ),
        keeps_class=tower.class_token and not drops_first,
    )
    return VisionSpec(tower, (level,), names, whole.pixels, whole.token_id, unread=behind)


LLAVA = VisionFamily(
    _llava,
    of_whole={
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "image_token_index": 32000,
    },
)
"""One view of an image."""

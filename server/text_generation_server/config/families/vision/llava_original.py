"""LLaVA 1.5 and 1.6 in the layout of their authors, which names the CLIP that it sees with: `mm_vision_tower`.

Their tokenizers have no placeholder, so the token for unknown text stands for images in prompts.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from ....errors import UnsupportedModel
from ...json_object import JsonObject
from ...vision import LevelSpec, LinearSpec, TileSpec, VisionSpec
from .clip import BEHIND, CLIP_LARGE, NAMES, clip_tower, unread
from .family import CLIP_PIXELS, VisionFamily, Whole, blocks, feature_layers, linear

_TOWERS: Mapping[str, Mapping[str, object]] = {
    "clip-vit-large-patch14": {**CLIP_LARGE, "image_size": 224},
    "clip-vit-large-patch14-336": {**CLIP_LARGE, "image_size": 336},
}
"""By the last part of their name, which may be a path."""
_NAMES = replace(
    NAMES, prefixes=(("model.vision_tower.vision_tower.vision_model.", "model.mm_projector."),), beside="mm_projector."
)
_PLACEHOLDER = "<unk>"


def _original(whole: Whole) -> VisionSpec:
    config = whole.config
    name = config.string("mm_vision_tower")
    known = name.rstrip("/").rpartition("/")[2]
    if known not in _TOWERS:
        raise UnsupportedModel(
            f"the vision tower {name!r} (`mm_vision_tower` in {config.source}) is not supported; known are "
            f"{', '.join(_TOWERS)}"
        )
    if config.boolean("mm_use_im_start_end", default=False):
        raise UnsupportedModel(f"`mm_use_im_start_end` in {config.source} must be false")
    vision = whole.vision.for_family(_TOWERS[known], {})
    total = blocks(vision)
    reads = feature_layers(config, total, "mm_vision_select_layer")
    count = max(1, *reads)
    keeps_class = config.choice("mm_vision_select_feature", {"patch": False, "cls_patch": True}, default="patch")
    level = LevelSpec(reads=reads, linears=_projector(config, whole.hidden), keeps_class=keeps_class)
    return VisionSpec(
        clip_tower(vision, count),
        (level,),
        _NAMES,
        whole.pixels,
        whole.token_named(_PLACEHOLDER),
        tiles=_tiles(config, keeps_class),
        origin=name,
        unread=(*BEHIND, *unread(count, total)),
    )


def _projector(config: JsonObject, outputs: int) -> tuple[LinearSpec, ...]:
    key, kind = "mm_projector_type", config.string("mm_projector_type", default="linear")
    if kind == "linear":
        return (LinearSpec("weight", outputs, "bias"),)
    found = re.fullmatch("mlp([1-9])x_gelu", kind)
    if found is None:
        raise config.error(key, "'linear', or 'mlp2x_gelu' with any number of layers up to 9")
    last = int(found[1]) - 1
    return tuple(linear(str(2 * index), outputs, then=None if index == last else "gelu") for index in range(last + 1))


def _tiles(config: JsonObject, keeps_class: bool) -> TileSpec | None:
    """Large images in tiles (1.6); others are one view, within a square or cut out of the middle."""
    if config.choice("image_aspect_ratio", {"pad": True, "square": True, "anyres": False}, default="square"):
        return None
    if keeps_class or config.string("mm_patch_merge_type", default="flat") != "spatial_unpad":
        raise UnsupportedModel(
            f"{config.source}: tiles are served with `mm_patch_merge_type` 'spatial_unpad' and "
            "`mm_vision_select_feature` 'patch'"
        )
    return TileSpec()


LLAVA_ORIGINAL = VisionFamily(_original, of_whole={"mm_vision_select_layer": -2}, pixels=CLIP_PIXELS)

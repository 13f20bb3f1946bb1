"""InternLM-XComposer 2 (Dong et al., 2024): CLIP with the positions of larger views, and two linear layers.

Tokens of images pass matrices of their own in the decoder. No token stands for images, so that for unknown text does.
"""

from dataclasses import replace

from ....errors import UnsupportedModel
from ...vision import LevelSpec, VisionSpec
from .clip import BEHIND, CLIP_LARGE, NAMES, clip_tower
from .family import CLIP_PIXELS, VisionFamily, Whole, blocks, linear, side

_NAMES = replace(NAMES, prefixes=(("vit.vision_tower.vision_model.", "vision_proj."),), beside="vision_proj.")
_PLACEHOLDER, _NUMBER = "<unk>", 0
"""The first piece of sentencepiece, whose files do not list it."""
_IN_TILES = {336: "InternLM-XComposer 2-4KHD", 560: "InternLM-XComposer 2.5"}


def _xcomposer2(whole: Whole) -> VisionSpec:
    size = side(whole.config, "img_size")
    if size in _IN_TILES:
        raise UnsupportedModel(f"tiles of large images, as {_IN_TILES[size]} has them, are not implemented")
    vision = whole.vision.for_family({**CLIP_LARGE, "image_size": size}, {})
    count = blocks(vision)
    level = LevelSpec(reads=(count,), linears=(linear("0", whole.hidden, then="gelu"), linear("2", whole.hidden)))
    token = whole.token_named(_PLACEHOLDER, _NUMBER)
    spec = VisionSpec(clip_tower(vision, count), (level,), _NAMES, whole.pixels, token, unread=BEHIND)
    return replace(spec, own_matrices=True)


XCOMPOSER2_VISION = VisionFamily(_xcomposer2, pixels=CLIP_PIXELS)

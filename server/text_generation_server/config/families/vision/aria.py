"""Aria (Rhymes AI, 2024): one view of an image, as long as the tower sees, of which learned queries make positions."""

from dataclasses import replace
from math import isqrt

from ...json_object import JsonObject
from ...vision import LevelSpec, LinearSpec, QuerySpec, TowerSpec, VisionSpec
from .clip import BEHIND, NAMES, SIGLIP_DEFAULTS, siglip_tower, unread
from .family import MOST_QUERIES, VisionFamily, Whole, blocks, feature_layers, layer_norm

_NORM = layer_norm(1e-5)


def _aria(whole: Whole) -> VisionSpec:
    config, vision = whole.config, whole.vision
    total = blocks(vision)
    reads = feature_layers(config, total)
    if len(reads) > 1:
        raise config.error("vision_feature_layer", "the number of one block")
    tower = _tower(vision, max(1, *reads))
    level = LevelSpec(
        reads=reads,
        queries=QuerySpec(tower.block.heads, _counts(config), _NORM),
        joined_norm=_NORM,
        norm_name="layer_norm",
        linears=(
            LinearSpec("feed_forward.linear_in.weight", whole.hidden, activation="gelu_tanh"),
            LinearSpec("feed_forward.linear_out.weight", whole.hidden),
        ),
    )
    behind = (*BEHIND, *unread(tower.blocks, total))
    return VisionSpec(tower, (level,), NAMES, whole.pixels, whole.token_id, unread=behind)


def _tower(config: JsonObject, count: int) -> TowerSpec:
    tower = siglip_tower(config, count)
    return (
        tower
        if tower.positions is None
        else replace(tower, image=0, positions=replace(tower.positions, kind="buckets"))
    )


def _counts(config: JsonObject) -> dict[int, int]:
    """How many queries there are of views whose longer side has so many patches. Files have the patches of a square."""
    key = "projector_patch_to_query_dict"
    counts = config.child(key)
    error = config.error(key, "an object of numbers of queries by numbers of patches, which are squares")
    found: dict[int, int] = {}
    for patches in counts.plain():
        side = isqrt(int(patches)) if patches.isdecimal() and len(patches) < 9 else 0
        if not side or side**2 != int(patches):
            raise error
        found[side] = counts.integer(patches, maximum=MOST_QUERIES)
    if not found:
        raise error
    return found


ARIA_VISION = VisionFamily(
    _aria,
    {**SIGLIP_DEFAULTS, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32},
    of_whole={
        "image_token_index": 9,
        "vision_feature_layer": -1,
        "projector_patch_to_query_dict": {"1225": 128, "4900": 256},
    },
)

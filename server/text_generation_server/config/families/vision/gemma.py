"""Gemma 3 (Google, 2025): SigLIP, whose patches are averaged to so many positions as the decoder reads."""

from ...spec import NormSpec
from ...vision import LevelSpec, LinearSpec, VisionSpec
from .clip import NAMES, SIGLIP_DEFAULTS, siglip_tower
from .family import VisionFamily, Whole, blocks, layer_norm


def _gemma3(whole: Whole) -> VisionSpec:
    config, vision = whole.config, whole.vision
    count = blocks(vision)
    tower = siglip_tower(vision, count)
    patches = tower.positions.side if tower.positions is not None else 0
    positions = int(config.integer("mm_tokens_per_image") ** 0.5)
    if patches % positions:
        raise config.error("mm_tokens_per_image", f"the square of a divisor of {patches}, the patches along a side")
    eps = vision.number("layer_norm_eps")
    level = LevelSpec(
        reads=(count,),
        last_norm=layer_norm(eps),
        join="mean",
        joined_norm=NormSpec(eps, wide=True, one_plus=True),
        norm_name="mm_soft_emb_norm",
        linears=(LinearSpec("mm_input_projection_weight", whole.hidden, transposed=True),),
    )
    return VisionSpec(
        siglip_tower(vision, count, merge=patches // positions),
        (level,),
        NAMES,
        whole.pixels,
        whole.token_id,
        whole_spans=True,
        unread=("head.*",),
    )


GEMMA3_VISION = VisionFamily(
    _gemma3, SIGLIP_DEFAULTS, of_whole={"mm_tokens_per_image": 256, "image_token_index": 262_144}
)
"""One view of an image: what others call pan and scan is off in its files."""

"""Qwen-VL (Bai et al., 2023): one square view, of whose patches learned queries make as many positions as there are.

The tower is that of OpenCLIP without a class token.
"""

from math import isqrt

from ...json_object import JsonObject
from ...vision import BlockSpec, LevelSpec, LinearSpec, PositionSpec, QuerySpec, TowerSpec, VisionNames, VisionSpec
from .family import CLIP_PIXELS, MOST_QUERIES, VisionFamily, Whole, blocks, head_dim, layer_norm, side

_NORM = layer_norm(1e-6)
_HEAD = 128
"""Elements of a head of the queries."""
_SIDE = 16
"""Rows and columns of the table of positions, whatever the size of views."""
_PAD = 2
"""The placeholder has this distance from the token in front of an image."""
_NAMES = VisionNames(
    prefixes=(("transformer.visual.", "transformer.visual."),),
    patch="conv1",
    positions="positional_embedding",
    first_norm="ln_pre",
    block="transformer.resblocks.{}.",
    norms=("ln_1", "ln_2"),
    qkv=("attn.in_proj",),
    qkv_by_head=True,
    out="attn.out_proj",
    first=("mlp.c_fc",),
    second="mlp.c_proj",
)


def _qwen_vl(whole: Whole) -> VisionSpec:
    config, width = whole.vision, whole.hidden
    tower = _tower(config)
    if config.integer("output_dim") != width or width % _HEAD:
        raise config.error("output_dim", f"{width}, the hidden size of the decoder, and a multiple of {_HEAD}")
    count = config.integer("n_queries", maximum=MOST_QUERIES)
    if isqrt(count) ** 2 != count:
        raise config.error("n_queries", "the square of a number")
    level = LevelSpec(
        reads=(tower.blocks,),
        of_patches=(LinearSpec("attn_pool.kv_proj.weight", width),) if tower.hidden != width else (),
        queries=QuerySpec(
            heads=width // _HEAD,
            counts={tower.image // tower.patch: count},
            norm=_NORM,
            placed="keys",
            table=PositionSpec(isqrt(count), "bicubic"),
            names="minicpm",
            prefix="attn_pool.",
        ),
        joined_norm=_NORM,
        norm_name="ln_post",
        linears=(LinearSpec("proj", width, transposed=True),),
    )
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, config.integer("image_start_id") + _PAD)


def _tower(config: JsonObject) -> TowerSpec:
    hidden, patch, image = config.integer("width"), side(config, "patch_size"), side(config, "image_size")
    if image % patch:
        raise config.error("image_size", f"a multiple of {patch}, the `patch_size`")
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=blocks(config, "layers"),
        block=BlockSpec(
            heads=config.integer("heads"),
            head_dim=head_dim(config, hidden, "heads"),
            inner=int(hidden * config.number("mlp_ratio")),
            activation="gelu",
            norm=_NORM,
        ),
        image=image,
        positions=PositionSpec(_SIDE, "bicubic"),
        first_norm=_NORM,
    )


QWEN_VL = VisionFamily(_qwen_vl, {"n_queries": 256, "image_start_id": 151857}, pixels=CLIP_PIXELS, part="visual")

"""MiniCPM-V 2.6, 4 and 4.5 (OpenBMB, 2024): views of any form, of each of which learned queries make 64 positions."""

from dataclasses import replace

from ...json_object import JsonObject
from ...vision import LevelSpec, LinearSpec, QuerySpec, TowerSpec, VisionSpec
from .clip import NAMES, SIGLIP_DEFAULTS, siglip_tower, unread
from .family import MOST_QUERIES, VisionFamily, Whole, blocks, layer_norm, linear, side

_NORM = layer_norm(1e-6)
_HEAD = 128
"""Elements of a head of the queries."""
_NAMES = replace(NAMES, prefixes=(("vpm.", "resampler."),))
_PLACEHOLDER = "<unk>"
_OF_VALUES = 4.5
"""The version whose values, and not its keys, are told where patches are."""


def _minicpm(whole: Whole) -> VisionSpec:
    config, total = whole.config, blocks(whole.vision)
    count = total - 1 if config.boolean("drop_vision_last_layer", default=False) else total
    if count < 1:
        raise whole.vision.error("num_hidden_layers", "at least 2, of which `drop_vision_last_layer` drops one")
    tower, width = _tower(whole.vision, count), whole.hidden
    if width % _HEAD:
        raise whole.text.error("hidden_size", f"a multiple of {_HEAD}, the elements of a head of the queries")
    level = LevelSpec(
        reads=(count,),
        last_norm=layer_norm(whole.vision.number("layer_norm_eps")),
        of_patches=(linear("kv_proj", width, bias=False),) if tower.hidden != width else (),
        queries=QuerySpec(
            heads=width // _HEAD,
            counts={side(config, "image_size") // tower.patch: config.integer("query_num", maximum=MOST_QUERIES)},
            norm=_NORM,
            of_any_size=True,
            placed="values" if config.number("version") == _OF_VALUES else "keys",
            names="minicpm",
        ),
        joined_norm=_NORM,
        norm_name="ln_post",
        linears=(LinearSpec("proj", width, transposed=True),),
    )
    token = whole.token_named(_PLACEHOLDER)
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, token, unread=unread(count, total))


def _tower(vision: JsonObject, count: int) -> TowerSpec:
    tower = siglip_tower(vision, count)
    if tower.positions is None:
        return tower
    return replace(tower, image=0, positions=replace(tower.positions, kind="buckets"))


MINICPM_V = VisionFamily(
    _minicpm,
    {
        **SIGLIP_DEFAULTS,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 980,
        "patch_size": 14,
    },
    of_whole={"query_num": 64, "image_size": 448},
)

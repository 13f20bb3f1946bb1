"""MiniMax M3 (2026): one view of an image, of any size, whose patches are projected before 2 x 2 of them are merged."""

from collections.abc import Mapping
from dataclasses import replace

from ...vision import BlockSpec, LevelSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, head_dim, layer_norm, linear, side
from .pixtral import rope_theta

_SMALLEST_HEAD = 6
"""Two elements for each of time, row and column."""
_NAMES = VisionNames(prefixes=(("vision_tower.vision_model.", ""), ("model.vision_tower.vision_model.", "model.")))
"""Those of the authors, which Transformers writes as well."""


def _minimax_m3(whole: Whole) -> VisionSpec:
    config = whole.vision
    norm = layer_norm(config.number("layer_norm_eps"))
    hidden = config.integer("hidden_size")
    of_head = head_dim(config, hidden, multiple=2)
    if of_head < _SMALLEST_HEAD:
        raise config.error("num_attention_heads", f"heads of at least {_SMALLEST_HEAD} elements")
    tower = TowerSpec(
        hidden=hidden,
        patch=side(config, "patch_size"),
        blocks=blocks(config),
        block=BlockSpec(
            heads=config.integer("num_attention_heads"),
            head_dim=of_head,
            inner=config.integer("intermediate_size"),
            activation=activation(config),
            norm=norm,
        ),
        merge=config.integer("spatial_merge_size", maximum=64),
        frames=config.integer("temporal_patch_size", maximum=64),
        rope=VisionRopeSpec(rope_theta(config), "thirds"),
        first_norm=norm,
    )
    level = _projector(tower, whole.config.integer("projector_hidden_size"), whole.hidden)
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, whole.token_id)


def _projector(tower: TowerSpec, inner: int, outputs: int) -> LevelSpec:
    """Two networks: of patches, and of those that become one position."""
    first, second = "multi_modal_projector.linear_{}", "patch_merge_mlp.linear_{}"
    of_patches = linear(first.format(1), inner, then="gelu"), linear(first.format(2), outputs)
    level = LevelSpec(
        (tower.blocks,), (linear(second.format(1), inner, then="gelu"), linear(second.format(2), outputs))
    )
    return replace(level, of_patches=of_patches)


_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
}
MINIMAX_M3_VISION = VisionFamily(
    _minimax_m3, _DEFAULTS, of_whole={"image_token_index": 200025, "projector_hidden_size": 6144}
)

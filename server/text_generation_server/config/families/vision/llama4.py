"""Llama 4 (Meta, 2025): tiles of one size with patches shuffled into positions, and the whole image as one more."""

from collections.abc import Mapping
from dataclasses import replace

from ...json_object import JsonObject
from ...vision import BlockSpec, LevelSpec, LinearSpec, PositionSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, blocks, head_dim, layer_norm, side
from .pixtral import rope_theta

_NORM = layer_norm(1e-5)
_MOST_MERGED = 64
_TOWER, _ADAPTER = "vision_model.", "vision_model.vision_adapter.mlp."
_NAMES = VisionNames(
    prefixes=((_TOWER, ""), (f"model.{_TOWER}", "model.")),
    patch="patch_embedding.linear",
    patch_layout="channels first",
    class_token="class_embedding",
    class_last=True,
    positions="positional_embedding_vlm",
    first_norm="layernorm_pre",
    last_norm="layernorm_post",
    block="model.layers.{}.",
    norms=("input_layernorm", "post_attention_layernorm"),
    out="self_attn.o_proj",
)


def _llama4(whole: Whole) -> VisionSpec:
    config = whole.vision
    tower = _tower(config)
    inputs = tower.hidden * tower.merge**2
    if config.integer("intermediate_size") != inputs:
        raise config.error("intermediate_size", f"{inputs}, the patches of a position")
    outputs = config.integer("projector_output_dim")
    for key, other in (("projector_input_dim", "projector_output_dim"), ("vision_output_dim", "projector_output_dim")):
        if config.integer(key) != outputs:
            raise config.error(key, f"{outputs}, as `{other}`")
    level = LevelSpec(
        reads=(tower.blocks,),
        last_norm=_NORM,
        linears=(
            LinearSpec(f"{_ADAPTER}fc1.weight", outputs, activation="gelu"),
            LinearSpec(f"{_ADAPTER}fc2.weight", outputs, activation="gelu"),
            LinearSpec("multi_modal_projector.linear_1.weight", whole.hidden),
        ),
    )
    return VisionSpec(tower, (level,), _NAMES, replace(whole.pixels, coarse=True), whole.token_id)


def _tower(config: JsonObject) -> TowerSpec:
    hidden, patch, image = config.integer("hidden_size"), side(config, "patch_size"), side(config, "image_size")
    merge = 1 / config.number("pixel_shuffle_ratio")
    if not merge.is_integer() or merge > _MOST_MERGED:
        raise config.error("pixel_shuffle_ratio", "1 divided by a whole number")
    if image % (patch * int(merge)):
        raise config.error("image_size", f"a multiple of {patch * int(merge)}, the side of one position")
    block = BlockSpec(
        heads=config.integer("num_attention_heads"),
        head_dim=head_dim(config, hidden, multiple=4),
        inner=config.integer("intermediate_size"),
        activation="gelu",
        norm=_NORM,
    )
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=blocks(config),
        block=block,
        image=image,
        merge=int(merge),
        class_token=True,
        positions=PositionSpec(image // patch),
        rope=VisionRopeSpec(rope_theta(config), "neighbours by half", first=1),
        first_norm=_NORM,
    )


_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "vision_output_dim": 7680,
}
LLAMA4_VISION = VisionFamily(_llama4, _DEFAULTS, {"image_token_index": 200_092})

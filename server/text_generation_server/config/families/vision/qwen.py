"""Qwen 2 VL, 2.5 VL, 3 VL and 3.5: one view of an image, of any size, whose patches are merged by 2 x 2."""

from collections.abc import Mapping
from dataclasses import replace

from ...json_object import JsonObject
from ...spec import NormSpec
from ...vision import BlockSpec, LevelSpec, PositionSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, head_dim, layer_norm, linear, side
from .pixtral import rope_theta

_LAYER, _RMS = layer_norm(1e-6), NormSpec(1e-6)
_MOST_POSITIONS = 2**20
_NAMES = VisionNames(
    prefixes=(("visual.", "visual."), ("model.visual.", "model.visual.")),
    patch="patch_embed.proj",
    positions="pos_embed.weight",
    block="blocks.{}.",
    norms=("norm1", "norm2"),
    qkv=("attn.qkv",),
    out="attn.proj",
)


def _tower(config: JsonObject, hidden: int, block: BlockSpec) -> TowerSpec:
    return TowerSpec(
        hidden=hidden,
        patch=side(config, "patch_size"),
        blocks=blocks(config, "depth"),
        block=block,
        merge=config.integer("spatial_merge_size", maximum=64),
        frames=config.integer("temporal_patch_size", maximum=64),
        rope=VisionRopeSpec(rope_theta(config), "halves"),
    )


def _block(config: JsonObject, hidden: int, inner: int, norm: NormSpec) -> BlockSpec:
    heads = config.integer("num_heads")
    return BlockSpec(heads, head_dim(config, hidden, "num_heads", multiple=4), inner, activation(config), norm)


def _two(prefix: str, names: tuple[str, str], tower: TowerSpec, outputs: int) -> LevelSpec:
    """A projector of two linear layers of the last hidden states."""
    inner = tower.hidden * tower.merge**2
    linears = linear(f"{prefix}{names[0]}", inner, then="gelu"), linear(f"{prefix}{names[1]}", outputs)
    return LevelSpec((tower.blocks,), linears)


def _qwen2(whole: Whole) -> VisionSpec:
    config = whole.vision
    hidden = config.integer("embed_dim")
    inner = int(hidden * config.number("mlp_ratio"))
    tower = _tower(config, hidden, _block(config, hidden, inner, _LAYER))
    level = _two("merger.", ("mlp.0", "mlp.2"), tower, config.integer("hidden_size"))
    level = replace(level, norm=_LAYER, norm_name="merger.ln_q")
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, whole.token_id, axes=True)


def _qwen2_5(whole: Whole) -> VisionSpec:
    config = whole.vision
    hidden = config.integer("hidden_size")
    block = replace(_block(config, hidden, config.integer("intermediate_size"), _RMS), gated=True)
    tower = _tower(config, hidden, block)
    window = config.integer("window_size") // tower.patch // tower.merge
    if not window:
        raise config.error("window_size", f"at least {tower.patch * tower.merge}, the side of one position")
    full = config.integer_or_list("fullatt_block_indexes", (), 0, tower.blocks)
    tower = replace(tower, window=window, whole=full)
    level = _two("merger.", ("mlp.0", "mlp.2"), tower, config.integer("out_hidden_size"))
    level = replace(level, norm=_RMS, norm_name="merger.ln_q")
    names = replace(_NAMES, first=("mlp.gate_proj", "mlp.up_proj"), second="mlp.down_proj")
    return VisionSpec(tower, (level,), names, whole.pixels, whole.token_id, axes=True)


def _qwen3(whole: Whole) -> VisionSpec:
    config = whole.vision
    hidden = config.integer("hidden_size")
    tower = _tower(config, hidden, _block(config, hidden, config.integer("intermediate_size"), _LAYER))
    table = int(config.integer("num_position_embeddings", maximum=_MOST_POSITIONS) ** 0.5)
    tower = replace(tower, patch_bias=True, positions=PositionSpec(table, "bilinear"))
    outputs, both = config.integer("out_hidden_size"), ("linear_fc1", "linear_fc2")
    levels = [replace(_two("merger.", both, tower, outputs), norm=_LAYER, norm_name="merger.norm")]
    indexes = config.integer_or_list("deepstack_visual_indexes", (), 0, tower.blocks - 1)
    for number, block in enumerate(indexes):
        prefix = f"deepstack_merger_list.{number}."
        level = replace(_two(prefix, both, tower, outputs), reads=(block + 1,))
        levels.append(replace(level, joined_norm=_LAYER, norm_name=f"{prefix}norm"))
    names = replace(_NAMES, first=("mlp.linear_fc1",), second="mlp.linear_fc2")
    return VisionSpec(tower, tuple(levels), names, whole.pixels, whole.token_id, axes=True)


_DEFAULTS: Mapping[str, object] = {
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_OF_WHOLE = {"image_token_id": 151655}
QWEN2_VL = VisionFamily(
    _qwen2,
    {**_DEFAULTS, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "hidden_act": "quick_gelu"},
    _OF_WHOLE,
)
QWEN2_5_VL = VisionFamily(
    _qwen2_5,
    {
        **_DEFAULTS,
        "hidden_size": 3584,
        "out_hidden_size": 3584,
        "intermediate_size": 3420,
        "hidden_act": "silu",
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    _OF_WHOLE,
)
_QWEN3: Mapping[str, object] = {
    **_DEFAULTS,
    "depth": 27,
    "patch_size": 16,
    "hidden_size": 1152,
    "out_hidden_size": 3584,
    "intermediate_size": 4304,
    "hidden_act": "gelu_pytorch_tanh",
    "num_position_embeddings": 2304,
}
QWEN3_VL = VisionFamily(_qwen3, {**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]}, _OF_WHOLE)
QWEN3_5_VISION = VisionFamily(_qwen3, _QWEN3, {"image_token_id": 248056})
"""The same tower without DeepStack."""

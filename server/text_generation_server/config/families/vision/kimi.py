"""MoonViT of Kimi VL and K2.5 (Moonshot AI, 2025): one view of an image, of any size, whose patches merge by 2 x 2."""

from collections.abc import Mapping
from dataclasses import replace

from ...vision import BlockSpec, LevelSpec, PositionSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, head_dim, layer_norm, linear, side
from .pixtral import rope_theta

_NORM = layer_norm(1e-5)
_LARGEST_TABLE = 2**10
_LARGEST_MERGE = 64
_NAMES = VisionNames(
    prefixes=(("vision_tower.", "mm_projector."), ("model.vision_tower.", "model.mm_projector.")),
    patch="patch_embed.proj",
    positions="patch_embed.pos_emb.weight",
    positions_in_rows=True,
    last_norm="encoder.final_layernorm",
    block="encoder.blocks.{}.",
    norms=("norm0", "norm1"),
    qkv=("wqkv",),
    out="wo",
    first=("mlp.fc0",),
    second="mlp.fc1",
)
"""Those of the authors, which Transformers writes as well."""


def _k25(whole: Whole) -> VisionSpec:
    eps = whole.config.number("projection_layer_norm_eps")
    return _kimi(whole, _NAMES, ("proj.0", "proj.2"), eps, whole.token_id)


def _vl(whole: Whole) -> VisionSpec:
    prefixes = (("vision_tower.", "multi_modal_projector."),)
    token = whole.config.integer("media_placeholder_token_id", minimum=0)
    return _kimi(whole, replace(_NAMES, prefixes=prefixes), ("linear_1", "linear_2"), 1e-5, token)


def _kimi(whole: Whole, names: VisionNames, linears: tuple[str, str], eps: float, token: int) -> VisionSpec:
    config = whole.vision
    hidden = config.integer("hidden_size")
    table = config.integer("pos_emb_height", maximum=_LARGEST_TABLE)
    if config.integer("pos_emb_width") != table:
        raise config.error("pos_emb_width", f"{table}, as `pos_emb_height`")
    block = BlockSpec(
        heads=config.integer("num_attention_heads"),
        head_dim=head_dim(config, hidden, multiple=4),
        inner=config.integer("intermediate_size"),
        activation=activation(config),
        norm=_NORM,
    )
    tower = TowerSpec(
        hidden=hidden,
        patch=side(config, "patch_size"),
        blocks=blocks(config),
        block=block,
        merge=side(config, "merge_kernel_size", _LARGEST_MERGE),
        patch_bias=True,
        positions=PositionSpec(table, "bicubic"),
        rope=VisionRopeSpec(rope_theta(config), "neighbours"),
    )
    inner = hidden * tower.merge**2
    level = LevelSpec(
        reads=(tower.blocks,),
        last_norm=_NORM,
        norm=layer_norm(eps),
        norm_name="pre_norm",
        linears=(linear(linears[0], inner, then="gelu"), linear(linears[1], whole.hidden)),
    )
    return VisionSpec(tower, (level,), names, whole.pixels, token)


_OLDER = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
_INITIAL = {key: f"init_{key}" for key in ("pos_emb_height", "pos_emb_width")}
_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
    "pos_emb_height": 64,
    "pos_emb_width": 64,
    "hidden_act": "gelu_pytorch_tanh",
}
KIMI_K25 = VisionFamily(
    _k25,
    _DEFAULTS,
    of_whole={"projection_layer_norm_eps": 1e-5, "image_token_id": 163605},
    older={**{key: f"vt_{key}" for key in _OLDER}, **_INITIAL},
)
KIMI_VL = VisionFamily(_vl, _DEFAULTS, of_whole={"media_placeholder_token_id": 163605}, older=_INITIAL)

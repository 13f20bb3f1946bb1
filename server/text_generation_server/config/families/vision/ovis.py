"""Ovis 2 (Alibaba, 2024) in the layout of Transformers: a position is a mixture of the rows of a table of visual words.

Tiles of a large image have positions between them that are words too, the last ones of the table.
"""

from ....errors import UnsupportedModel
from ...json_object import JsonObject
from ...spec import NormSpec
from ...vision import BlockSpec, LevelSpec, LinearSpec, MarkSpec, PositionSpec, TowerSpec, VisionNames, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, head_dim, layer_norm, side

_MOST_MERGED = 64
_MARKS = 5
_TOWER, _TABLE = "vision_tower.", "visual_embeddings_table.weight"
_NAMES = VisionNames(
    prefixes=((f"model.{_TOWER}transformer.", "model."), (f"{_TOWER}transformer.", "")),
    patch_norm="embeddings.rms_norm",
    last_norm="rms_norm",
    norms=("rms_norm1", "rms_norm2"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.out_proj",
    first=("ffn.gate_proj", "ffn.up_proj"),
    second="ffn.down_proj",
    ignored=("*.embeddings.position_ids",),
)


def _ovis2(whole: Whole) -> VisionSpec:
    config = whole.vision
    if config.string("tokenize_function", default="softmax") != "softmax":
        raise UnsupportedModel(f"{config.source}: `tokenize_function` must be 'softmax'")
    if config.integer("num_visual_indicator_tokens") != _MARKS:
        raise config.error("num_visual_indicator_tokens", f"{_MARKS}")
    norm = NormSpec(config.number("rms_norm_eps"))
    tower, words = _tower(config, norm), config.integer("vocab_size", maximum=2**24)
    if words <= _MARKS:
        raise config.error("vocab_size", f"more than the {_MARKS} words between tiles")
    level = LevelSpec(
        reads=(tower.blocks,),
        last_norm=norm,
        linears=(
            LinearSpec(
                f"{_TOWER}head_linear.weight",
                words - _MARKS,
                activation="softmax",
                norm=layer_norm(1e-5),
                norm_name=f"{_TOWER}head_norm",
            ),
            LinearSpec(_TABLE, whole.hidden, transposed=True, rest=_MARKS),
        ),
    )
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, whole.token_id, marks=MarkSpec(_TABLE, words))


def _tower(config: JsonObject, norm: NormSpec) -> TowerSpec:
    hidden, patch, image = config.integer("hidden_size"), side(config, "patch_size"), side(config, "image_size")
    merge = config.integer("hidden_stride", maximum=_MOST_MERGED)
    if image % (patch * merge):
        raise config.error("image_size", f"a multiple of {patch * merge}, the side of one position")
    bias = config.boolean("qkv_bias", default=False)
    block = BlockSpec(
        heads=config.integer("num_attention_heads"),
        head_dim=head_dim(config, hidden),
        inner=config.integer("intermediate_size"),
        activation=activation(config),
        norm=norm,
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=config.boolean("mlp_bias", default=False),
    )
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=blocks(config),
        block=block,
        image=image,
        merge=merge,
        patch_bias=True,
        patch_norm=norm,
        positions=PositionSpec(image // patch),
    )


OVIS2 = VisionFamily(
    _ovis2,
    {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "image_size": 224,
        "patch_size": 14,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "vocab_size": 16_384,
        "hidden_stride": 1,
        "num_visual_indicator_tokens": _MARKS,
    },
    of_whole={"image_token_id": 151_665},
)

"""InternVL (Chen et al., 2024), Idefics 3 and SmolVLM: tiles of one size, whose patches are shuffled into positions.

The tiles of an image come first, row by row; the whole image, made smaller, is the last view.
"""

from dataclasses import replace

from ....errors import UnsupportedModel
from ...json_object import JsonObject
from ...spec import NormSpec
from ...vision import BlockSpec, LevelSpec, LinearSpec, PositionSpec, TowerSpec, VisionNames, VisionSpec
from .clip import NAMES, SIGLIP_DEFAULTS, siglip_tower
from .family import (
    TWO_PREFIXES,
    VisionFamily,
    Whole,
    activation,
    blocks,
    feature_layers,
    head_dim,
    keeps_class,
    layer_norm,
    linear,
    side,
)

_INTERNVL_NAMES = VisionNames(
    prefixes=TWO_PREFIXES,
    patch="embeddings.patch_embeddings.projection",
    class_token="embeddings.cls_token",
    positions="embeddings.position_embeddings",
    dimensions=3,
    last_norm="layernorm",
    block="encoder.layer.{}.",
    norms=("layernorm_before", "layernorm_after"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    qk_norms=("attention.q_norm", "attention.k_norm"),
    out="attention.projection_layer",
)
_CHAT_NAMES = VisionNames(
    prefixes=(("vision_model.", "mlp1."),),
    class_token="embeddings.class_embedding",
    positions="embeddings.position_embedding",
    dimensions=3,
    norms=("norm1", "norm2"),
    qkv=("attn.qkv",),
    qk_norms=("attn.q_norm", "attn.k_norm"),
    out="attn.proj",
    scales=("ls1", "ls2"),
)
"""Of the authors' own code."""
_MOST_MERGED = 64


def _internvl(whole: Whole) -> VisionSpec:
    config, vision = whole.config, whole.vision
    total = blocks(vision)
    reads = feature_layers(config, total)
    count = max(1, *reads)
    if keeps_class(config) or not vision.boolean("use_absolute_position_embeddings", default=True):
        raise UnsupportedModel(
            f"{config.source}: InternVL is served with `vision_feature_select_strategy` 'default' and learned positions"
        )
    tower = _internvl_tower(vision, count, _merged(config))
    is_last = reads == (total,) and not vision.boolean("use_mean_pooling", default=True)
    level = LevelSpec(
        reads=reads,
        last_norm=layer_norm(vision.number("layer_norm_eps")) if is_last else None,
        joined_norm=layer_norm(1e-5),
        norm_name="layer_norm",
        linears=(
            linear("linear_1", whole.hidden, then=activation(config, "projector_hidden_act")),
            linear("linear_2", whole.hidden),
        ),
    )
    behind = ("embeddings.mask_token", *(f"encoder.layer.{index}.*" for index in range(count, total)))
    return VisionSpec(tower, (level,), _INTERNVL_NAMES, whole.pixels, whole.token_id, unread=behind)


def _merged(config: JsonObject) -> int:
    ratio = 1 / config.number("downsample_ratio")
    if not ratio.is_integer() or ratio > _MOST_MERGED:
        raise config.error("downsample_ratio", "1 divided by a whole number")
    return int(ratio)


def _chat(whole: Whole) -> VisionSpec:
    """The same model with the keys and names of the authors' own code."""
    config, vision = whole.config, whole.vision
    total = blocks(vision)
    reads = feature_layers(config, total, "select_layer")
    if config.string("ps_version", default="v1") != "v2":
        raise UnsupportedModel(f"{config.source}: InternVL is served with `ps_version` 'v2'")
    tower = _internvl_tower(vision, max(1, *reads), _merged(config))
    if config.integer("force_image_size", default=tower.image) != tower.image:
        raise config.error("force_image_size", f"{tower.image}, the `image_size` of `vision_config`")
    level = LevelSpec(
        reads=reads,
        joined_norm=layer_norm(1e-5),
        norm_name="0",
        linears=(linear("1", whole.hidden, then="gelu"), linear("3", whole.hidden)),
    )
    behind = tuple(f"encoder.layers.{index}.*" for index in range(tower.blocks, total))
    placeholder = whole.token_named("<IMG_CONTEXT>")
    return VisionSpec(tower, (level,), _CHAT_NAMES, whole.pixels, placeholder, unread=behind)


def _internvl_tower(config: JsonObject, count: int, merge: int) -> TowerSpec:
    hidden, heads, patch = (
        config.integer("hidden_size"),
        config.integer("num_attention_heads"),
        side(config, "patch_size"),
    )
    image, eps = side(config, "image_size"), config.number("layer_norm_eps")
    if image % (patch * merge):
        raise config.error("image_size", f"a multiple of {patch * merge}, the side of one position")
    norms = {"layer_norm": layer_norm(eps), "rms_norm": NormSpec(eps)}
    block = BlockSpec(
        heads=heads,
        head_dim=head_dim(config, hidden),
        inner=config.integer("intermediate_size"),
        activation=activation(config),
        norm=config.choice("norm_type", norms),
        qkv_bias=config.boolean("attention_bias", default=False),
        qk_norm=NormSpec(1e-6) if config.boolean("use_qk_norm", default=False) else None,
        scaled=True,
    )
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=count,
        block=block,
        image=image,
        merge=merge,
        patch_bias=True,
        class_token=True,
        positions=PositionSpec(image // patch),
    )


def _idefics3(whole: Whole) -> VisionSpec:
    config, vision = whole.config, whole.vision
    count = blocks(vision)
    tower = siglip_tower(vision, count, merge=config.integer("scale_factor", maximum=_MOST_MERGED))
    if tower.positions is not None:
        tower = replace(tower, image=0, positions=replace(tower.positions, kind="buckets"))
    level = LevelSpec(
        reads=(count,),
        last_norm=layer_norm(vision.number("layer_norm_eps")),
        linears=(LinearSpec("modality_projection.proj.weight", whole.hidden),),
    )
    prefixes = (("model.vision_model.", "model.connector."), ("vision_model.", "connector."))
    return VisionSpec(tower, (level,), replace(NAMES, prefixes=prefixes), whole.pixels, whole.token_id)


INTERNVL = VisionFamily(
    _internvl,
    {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
        "hidden_act": "gelu",
        "norm_type": "layer_norm",
        "layer_norm_eps": 1e-6,
    },
    of_whole={
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "downsample_ratio": 0.5,
        "projector_hidden_act": "gelu",
        "image_token_id": 151667,
    },
)
INTERNVL_CHAT = VisionFamily(
    _chat,
    {
        "hidden_size": 3200,
        "intermediate_size": 12_800,
        "num_hidden_layers": 48,
        "num_attention_heads": 25,
        "image_size": 224,
        "patch_size": 14,
        "hidden_act": "gelu",
        "norm_type": "rms_norm",
        "layer_norm_eps": 1e-6,
        "use_qk_norm": True,
    },
    of_whole={"select_layer": -1, "downsample_ratio": 0.5},
    older={"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"},
)
IDEFICS3 = VisionFamily(
    _idefics3,
    {**SIGLIP_DEFAULTS, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32},
    of_whole={"scale_factor": 2, "image_token_id": 128257},
)

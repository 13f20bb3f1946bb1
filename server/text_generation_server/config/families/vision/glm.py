"""GLM-4.1V, 4.5V and 4.6V (Z.ai, 2025): one view of an image, of any size, whose patches are merged by 2 x 2."""

from collections.abc import Mapping

from ...json_object import JsonObject
from ...spec import NormSpec
from ...vision import BlockSpec, LevelSpec, LinearSpec, PositionSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, head_dim, layer_norm, linear, side
from .pixtral import rope_theta

_NAMES = VisionNames(
    prefixes=(("visual.", "visual."), ("model.visual.", "model.visual.")),
    patch="patch_embed.proj",
    patch_norm="post_conv_layernorm",
    positions="embeddings.position_embedding.weight",
    last_norm="post_layernorm",
    block="blocks.{}.",
    norms=("norm1", "norm2"),
    qkv=("attn.qkv",),
    out="attn.proj",
    first=("mlp.gate_proj", "mlp.up_proj"),
    second="mlp.down_proj",
)


def _glm(whole: Whole) -> VisionSpec:
    config = whole.vision
    outputs, norm = config.integer("out_hidden_size"), NormSpec(config.number("rms_norm_eps"))
    tower = _tower(config, norm, outputs)
    level = LevelSpec(
        reads=(tower.blocks,),
        last_norm=norm,
        join="channels",
        linears=(
            LinearSpec("downsample.weight", outputs, "downsample.bias", patches=tower.merge),
            LinearSpec(
                "merger.proj.weight",
                outputs,
                activation="gelu",
                norm=layer_norm(1e-5),
                norm_name="merger.post_projection_norm",
            ),
            LinearSpec(
                "merger.up_proj.weight",
                config.integer("intermediate_size"),
                activation=activation(config),
                gate="merger.gate_proj.weight",
            ),
            linear("merger.down_proj", outputs, bias=False),
        ),
    )
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, whole.token_id, axes=True)


def _tower(config: JsonObject, norm: NormSpec, inner: int) -> TowerSpec:
    """`inner` is the size of feed-forward networks, which is that of the decoder's hidden states."""
    hidden, patch = config.integer("hidden_size"), side(config, "patch_size")
    image = side(config, "image_size")
    if image < patch:
        raise config.error("image_size", f"at least {patch}, the `patch_size`")
    block = BlockSpec(
        heads=config.integer("num_heads"),
        head_dim=head_dim(config, hidden, "num_heads", multiple=4),
        inner=inner,
        activation=activation(config),
        norm=norm,
        gated=True,
        qkv_bias=config.boolean("attention_bias", default=False),
        out_bias=False,
        ffn_bias=False,
    )
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=blocks(config, "depth"),
        block=block,
        merge=config.integer("spatial_merge_size", maximum=64),
        frames=config.integer("temporal_patch_size", maximum=64),
        patch_bias=True,
        patch_norm=norm,
        positions=PositionSpec(image // patch, "bicubic"),
        rope=VisionRopeSpec(rope_theta(config), "halves"),
    )


_DEFAULTS: Mapping[str, object] = {
    "depth": 24,
    "hidden_size": 1536,
    "hidden_act": "silu",
    "num_heads": 12,
    "image_size": 336,
    "patch_size": 14,
    "rms_norm_eps": 1e-5,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
}
GLM4V = VisionFamily(_glm, _DEFAULTS, {"image_token_id": 151_343})
GLM4V_MOE = VisionFamily(_glm, _DEFAULTS, {"image_token_id": 151_363})

"""Step 3.7 (StepFun, 2026): tiles of an image, and at last the whole image, made smaller.

Two convolutions halve height and width of the patches of a view, so that 4 x 4 of them become a position.
"""

from collections.abc import Mapping

from ...vision import BlockSpec, LevelSpec, PositionSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, head_dim, layer_norm, linear, side
from .pixtral import rope_theta

_HALVINGS = ("vit_downsampler1", "vit_downsampler2")
_NAMES = VisionNames(
    prefixes=(("vision_model.", ""), ("model.vision_model.", "model.")),
    patch="conv1",
    positions="positional_embedding",
    first_norm="ln_pre",
    block="transformer.resblocks.{}.",
    norms=("ln_1", "ln_2"),
    qkv=("attn.in_proj_",),
    out="attn.out_proj",
    first=("mlp.c_fc",),
    second="mlp.c_proj",
    scales=("ls_1.gamma", "ls_2.gamma"),
)
"""Those of the authors, which Transformers writes as well."""


def _step(whole: Whole) -> VisionSpec:
    config = whole.vision
    norm = layer_norm(config.number("layer_norm_eps"))
    hidden, patch, image = config.integer("hidden_size"), side(config, "patch_size"), side(config, "image_size")
    merge = 2 ** len(_HALVINGS)
    if image < patch * merge:
        raise config.error("image_size", f"at least {patch * merge}, the side of one position")
    block = BlockSpec(
        heads=config.integer("num_attention_heads"),
        head_dim=head_dim(config, hidden, multiple=4),
        inner=int(hidden * config.number("mlp_ratio")),
        activation=activation(config),
        norm=norm,
        scaled=True,
    )
    tower = TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=blocks(config),
        block=block,
        merge=merge,
        positions=PositionSpec(image // patch, "bilinear corners"),
        rope=VisionRopeSpec(rope_theta(config), "neighbours by half"),
        first_norm=norm,
    )
    bias = whole.config.boolean("projector_bias", default=False)
    level = LevelSpec((tower.blocks,), (linear("vit_large_projector", whole.hidden, bias),), halvings=_HALVINGS)
    return VisionSpec(tower, (level,), _NAMES, whole.pixels, whole.token_id)


_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 16,
    "image_size": 728,
    "patch_size": 14,
    "mlp_ratio": 8960 / 1536,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
STEP3P7_VISION = VisionFamily(
    _step,
    _DEFAULTS,
    of_whole={"image_token_id": 151679},
    older={"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"},
)

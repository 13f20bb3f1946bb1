"""Gemma 4 (Google, 2026): one view of an image, of any size, whose patches are averaged by 3 x 3."""

from ....errors import UnsupportedModel
from ...json_object import JsonObject
from ...pixels import PixelSpec
from ...spec import NormSpec
from ...vision import BlockSpec, LevelSpec, LinearSpec, PositionSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import VisionFamily, Whole, activation, blocks, side
from .pixtral import rope_theta

_MOST_PATCHES = 2**16
_LARGEST_MERGE = 64
_NAMES = VisionNames(
    prefixes=(("vision_tower.", "embed_vision."), ("model.vision_tower.", "model.embed_vision.")),
    patch="patch_embedder.input_proj",
    patch_layout="channels last",
    positions="patch_embedder.position_embedding_table",
    positions_in_rows=True,
    norms=("input_layernorm", "pre_feedforward_layernorm"),
    output_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    qkv=("self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"),
    out="self_attn.o_proj.linear",
    first=("mlp.gate_proj.linear", "mlp.up_proj.linear"),
    second="mlp.down_proj.linear",
)


def _gemma4(whole: Whole) -> VisionSpec:
    config = whole.vision
    tower = _tower(config)
    level = LevelSpec(
        reads=(tower.blocks,),
        join="mean",
        factor=tower.hidden**0.5,
        standardised=config.boolean("standardize", default=False),
        joined_norm=NormSpec(config.number("rms_norm_eps"), wide=True, weight=False),
        linears=(LinearSpec("embedding_projection.weight", whole.hidden),),
    )
    looks_ahead = whole.text.string("use_bidirectional_attention", default="") == "vision"
    return VisionSpec(tower, (level,), _NAMES, _centred(whole.pixels), whole.token_id, whole_spans=looks_ahead)


def _centred(pixels: PixelSpec) -> PixelSpec:
    """The class reads 2 * (x - 0.5), whatever the processor has made of a byte."""
    both = zip(pixels.mean, pixels.std, strict=True)
    return PixelSpec(pixels.scale, tuple(mean + std / 2 for mean, std in both), tuple(std / 2 for std in pixels.std))


def _tower(config: JsonObject) -> TowerSpec:
    hidden, heads, size = (config.integer(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    if config.integer("num_key_value_heads", default=heads) != heads:
        raise UnsupportedModel(f"{config.source}: `num_key_value_heads` must be `num_attention_heads`, {heads}")
    if size % 4:
        raise config.error("head_dim", "a multiple of 4")
    norm = NormSpec(config.number("rms_norm_eps"), wide=True)
    block = BlockSpec(
        heads=heads,
        head_dim=size,
        inner=config.integer("intermediate_size"),
        activation=activation(config, "hidden_activation"),
        norm=norm,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
        qk_norm=norm,
        qk_norm_by_head=True,
        value_norm=True,
        softmax_scale=1.0,
        output_norms=True,
        clipped=config.boolean("use_clipped_linears", default=False),
    )
    return TowerSpec(
        hidden=hidden,
        patch=side(config, "patch_size"),
        blocks=blocks(config),
        block=block,
        merge=side(config, "pooling_kernel_size", _LARGEST_MERGE),
        positions=PositionSpec(config.integer("position_embedding_size", maximum=_MOST_PATCHES), "axes"),
        rope=VisionRopeSpec(rope_theta(config), "quarters"),
    )


GEMMA4_VISION = VisionFamily(
    _gemma4,
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10_240,
        "rope_theta": 100.0,
    },
    of_whole={"image_token_id": 258_880},
)

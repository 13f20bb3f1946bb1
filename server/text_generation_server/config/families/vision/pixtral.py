"""The tower of Pixtral (Mistral AI, 2024), for views of any size, and the projector of Mistral Small 3.1 and later."""

from collections.abc import Mapping

from ...json_object import JsonObject
from ...spec import NormSpec
from ...vision import BlockSpec, LevelSpec, TowerSpec, VisionNames, VisionRopeSpec, VisionSpec
from .family import TWO_PREFIXES, VisionFamily, Whole, activation, blocks, feature_layers, head_dim, linear, side

_NORM = NormSpec(1e-5)
PIXTRAL_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 16,
    "hidden_act": "gelu",
}
PIXTRAL_NAMES = VisionNames(
    prefixes=TWO_PREFIXES,
    patch="patch_conv",
    first_norm="ln_pre",
    block="transformer.layers.{}.",
    norms=("attention_norm", "ffn_norm"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    first=("feed_forward.gate_proj", "feed_forward.up_proj"),
    second="feed_forward.down_proj",
)


def unread(count: int, total: int) -> tuple[str, ...]:
    """Patterns, behind the tower's prefix, of blocks that no projector reads."""
    return tuple(f"transformer.layers.{index}.*" for index in range(count, total))


def rope_theta(config: JsonObject) -> float:
    """Reads the base of the angles, in newer files under `rope_parameters`."""
    inner = config.child("rope_parameters")
    return inner.number("rope_theta") if "rope_theta" in inner else config.number("rope_theta", default=10_000.0)


def pixtral_tower(config: JsonObject, count: int, merge: int = 1) -> TowerSpec:
    """A tower of `count` blocks. Raises ConfigurationError."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    block = BlockSpec(
        heads=heads,
        head_dim=head_dim(config, hidden, multiple=4),
        inner=config.integer("intermediate_size"),
        activation=activation(config),
        norm=_NORM,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
    )
    return TowerSpec(
        hidden=hidden,
        patch=side(config, "patch_size"),
        blocks=count,
        block=block,
        merge=merge,
        rope=VisionRopeSpec(rope_theta(config), "alternating"),
        first_norm=_NORM,
    )


def _mistral3(whole: Whole) -> VisionSpec:
    config = whole.config
    total = blocks(whole.vision)
    reads = feature_layers(config, total)
    tower = pixtral_tower(whole.vision, max(1, *reads), config.integer("spatial_merge_size", maximum=64))
    bias = config.boolean("multimodal_projector_bias", default=False)
    level = LevelSpec(
        reads=reads,
        norm=NormSpec(whole.text.number("rms_norm_eps", default=1e-6)),
        join="channels",
        linears=(
            linear("patch_merger.merging_layer", tower.hidden, bias=False),
            linear("linear_1", whole.hidden, bias, activation(config, "projector_hidden_act")),
            linear("linear_2", whole.hidden, bias),
        ),
    )
    behind = unread(tower.blocks, total)
    return VisionSpec(tower, (level,), PIXTRAL_NAMES, whole.pixels, whole.token_id, unread=behind)


MISTRAL3 = VisionFamily(
    _mistral3,
    PIXTRAL_DEFAULTS,
    of_whole={
        "vision_feature_layer": -1,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "image_token_index": 10,
    },
)
"""One view of an image; heights and widths are multiples of `spatial_merge_size` patches."""

"""CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023): views of one size, with a learned position a patch."""

from collections.abc import Mapping

from ...json_object import JsonObject
from ...vision import BlockSpec, PositionSpec, TowerSpec, VisionNames
from .family import TWO_PREFIXES, activation, head_dim, layer_norm, side

CLIP_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
CLIP_LARGE: Mapping[str, object] = {
    **CLIP_DEFAULTS,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}
"""ViT-L/14."""
SIGLIP_DEFAULTS: Mapping[str, object] = {
    **CLIP_DEFAULTS,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
NAMES = VisionNames(prefixes=TWO_PREFIXES, ignored=("*.embeddings.position_ids",))
"""Older files hold the numbers of positions."""
BEHIND = ("post_layernorm.*", "head.*")
"""What classes for whole images have behind the last block."""


def unread(count: int, total: int) -> tuple[str, ...]:
    """Patterns, behind the tower's prefix, of blocks that no projector reads."""
    return tuple(f"encoder.layers.{index}.*" for index in range(count, total))


def siglip_tower(config: JsonObject, count: int, merge: int = 1) -> TowerSpec:
    """A tower of `count` blocks, with as many positions as `image_size` has patches. Raises ConfigurationError."""
    hidden, patch = config.integer("hidden_size"), side(config, "patch_size")
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=count,
        block=_block(config, hidden),
        image=side(config, "image_size"),
        merge=merge,
        patch_bias=True,
        positions=PositionSpec(_side_in_patches(config, patch)),
    )


def clip_tower(config: JsonObject, count: int) -> TowerSpec:
    """The same with a class token, and a norm before the first block."""
    hidden, patch = config.integer("hidden_size"), side(config, "patch_size")
    return TowerSpec(
        hidden=hidden,
        patch=patch,
        blocks=count,
        block=_block(config, hidden),
        image=side(config, "image_size"),
        class_token=True,
        positions=PositionSpec(_side_in_patches(config, patch)),
        first_norm=layer_norm(config.number("layer_norm_eps")),
    )


def _block(config: JsonObject, hidden: int) -> BlockSpec:
    heads = config.integer("num_attention_heads")
    return BlockSpec(
        heads=heads,
        head_dim=head_dim(config, hidden),
        inner=config.integer("intermediate_size"),
        activation=activation(config),
        norm=layer_norm(config.number("layer_norm_eps")),
    )


def _side_in_patches(config: JsonObject, patch: int) -> int:
    image = side(config, "image_size")
    if image < patch:
        raise config.error("image_size", f"at least {patch}, the `patch_size`")
    return image // patch

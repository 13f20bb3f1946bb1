"""The keys of `config.json` about rotary position embedding, of which there are several layouts."""

from dataclasses import replace
from typing import cast, get_args

from ..errors import UnsupportedModel
from .json_object import JsonObject
from .rotary import QueryGrowth, RopeSpec, RopeType

_LAYER_TYPES = ("full_attention", "sliding_attention", "main", "compress")
_KEYS = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    *("truncate", "short_factor", "long_factor"),
    # They say how positions of images are counted, what the weights were trained with, and what stands elsewhere.
    *("mrope_section", "mrope_interleaved", "finetuned", "max_position_embeddings"),
}
"""Keys of `rope_parameters` that are read, each by the types that have it, or change nothing."""


def parse_rope(
    config: JsonObject,
    head_dim: int,
    interleaved: bool = False,
    layer_type: str | None = None,
    scaled: bool = True,
    theta_key: str = "rope_theta",
) -> RopeSpec:
    """Reads any of four layouts: `rope_theta` alone, `rope_theta` with `rope_scaling`, the newer `rope_parameters`, and
    `rope_parameters` with an object for each type of layer, of which `layer_type` names one. In the first three,
    `scaled` says whether layers of this type are stretched, and `theta_key` is the key of their base.

    Raises ConfigurationError or UnsupportedModel.
    """
    if head_dim % 2:
        raise config.error("head_dim", "even: rotary embedding rotates pairs")
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    scaling = config.child(key)
    if layer_type is not None and layer_type in scaling:
        scaling = scaling.child(layer_type)
    elif not scaled:
        scaling = JsonObject({}, key)
    max_position_embeddings = config.integer("max_position_embeddings", default=2048)
    theta = scaling.number("rope_theta") if "rope_theta" in scaling else config.number(theta_key, default=10_000.0)
    rope_type = scaling.string("rope_type" if "rope_type" in scaling else "type", default="default")
    # What Phi-3, and DeepSeek's and Sarvam's own code, call them.
    rope_type = {"su": "longrope", "deepseek_yarn": "yarn"}.get(rope_type, rope_type)
    if rope_type == "proportional":
        return _proportional(scaling, theta, head_dim)
    if rope_type not in get_args(RopeType):
        raise UnsupportedModel(
            f"`{key}` in config.json asks for {rope_type!r}; known are {', '.join(get_args(RopeType))}, proportional"
        )
    rope = RopeSpec(
        theta=theta,
        original_max_position_embeddings=max_position_embeddings,
        rotary_dim=_rotary_dim(config, scaling, head_dim),
        interleaved=interleaved,
    )
    if rope_type == "default":
        return rope
    if rope_type == "dynamic" and rope.rotary_dim <= 2:
        raise config.error("head_dim", "above 2 with dynamic rope scaling")
    return _scaled(config, scaling, cast("RopeType", rope_type), rope)


def refuse_unknown(config: JsonObject) -> None:
    """Raises UnsupportedModel for keys about rotary embedding that nobody reads: each changes what positions mean.
    Called when the family has read its own, on the same configuration.
    """
    strangers = config.never_asked()
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    if key in strangers:
        return
    scaling = config.child(key)
    outer = _unknown(scaling)
    inner = (name for kind in _LAYER_TYPES if kind not in outer for name in _unknown(scaling.child(kind)))
    for name in (*outer, *inner):
        raise UnsupportedModel(
            f"`{key}` in config.json has `{name}`, which is not implemented for this architecture: without it the "
            "model would compute something else; remove it only if it changes nothing"
        )


def _unknown(scaling: JsonObject) -> list[str]:
    """Without factors of 1, which are none."""
    values = scaling.plain()
    return [name for name in scaling.never_asked() if name not in _KEYS and values[name] != 1]


def with_query_scale(config: JsonObject, rope: RopeSpec) -> RopeSpec:
    """The same where queries grow with their position: as `llama_4_scaling_beta` beside the other keys says, or
    `llama_4_scaling` of files made from `params.json`.
    """
    of_rope, own = config.child("rope_parameters" if "rope_parameters" in config else "rope_scaling"), "llama_4_scaling"
    scaling, key = (config.child(own), "beta") if own in config else (of_rope, "llama_4_scaling_beta")
    if key not in scaling or scaling.plain()[key] == 0:
        return rope
    length = scaling.integer("original_max_position_embeddings")
    return replace(rope, query_growth=QueryGrowth(scaling.number(key), length))


def with_axes(config: JsonObject, rope: RopeSpec, head_dim: int, interleaved: bool) -> RopeSpec:
    """The same where positions count along axes (M-RoPE): `mrope_section` beside the other keys says how many rotated
    pairs count along each, one axis after the other, or, `interleaved`, in turns as far as height and width reach.
    Files without it have one axis.

    Raises ConfigurationError.
    """
    scaling = config.child("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    key, pairs = "mrope_section", (rope.rotary_dim or head_dim) // 2
    if key not in scaling:
        return rope
    time, height, width = scaling.integers(key, 3, maximum=pairs)
    if interleaved:
        reach = {1: 3 * height, 2: 3 * width}
        return replace(rope, axes=tuple(i % 3 if i < reach.get(i % 3, 0) else 0 for i in range(pairs)))
    if time + height + width != pairs:
        raise scaling.error(key, f"three numbers with the sum {pairs}, the rotated pairs of a head")
    return replace(rope, axes=(*[0] * time, *[1] * height, *[2] * width))


def _rotary_dim(config: JsonObject, scaling: JsonObject, head_dim: int) -> int:
    """Returns the elements of a head that are rotated. Older files have the key in `config.json` itself."""
    source = scaling if "partial_rotary_factor" in scaling else config
    factor = source.number("partial_rotary_factor", default=1.0)
    rotary_dim = int(head_dim * factor)
    if factor > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise source.error("partial_rotary_factor", f"such that an even number of the {head_dim} elements is rotated")
    return rotary_dim


def _proportional(scaling: JsonObject, theta: float, head_dim: int) -> RopeSpec:
    """Frequencies of the whole head, of which the lowest are 0."""
    share, factor = scaling.number("partial_rotary_factor", default=1.0), scaling.number("factor", default=1.0)
    pairs = int(share * head_dim // 2)
    if share > 1 or not pairs:
        raise scaling.error("partial_rotary_factor", f"such that some of the {head_dim} elements are rotated")
    return RopeSpec("default" if factor == 1 else "linear", theta, factor, still_pairs=head_dim // 2 - pairs)


def _scaled(config: JsonObject, scaling: JsonObject, rope_type: RopeType, rope: RopeSpec) -> RopeSpec:
    longest = rope.original_max_position_embeddings
    original = scaling.integer(
        "original_max_position_embeddings",
        default=config.integer("original_max_position_embeddings", default=longest),
    )
    if rope_type in ("linear", "dynamic"):
        original = longest
    # Where the file has both lengths, the factor is their ratio.
    factor_default = longest / original if rope_type in ("yarn", "longrope") else None
    low_freq_factor = scaling.number("low_freq_factor", default=None if rope_type == "llama3" else 1.0)
    high_freq_factor = scaling.number("high_freq_factor", default=None if rope_type == "llama3" else 4.0)
    if rope_type == "llama3" and high_freq_factor < low_freq_factor:
        raise scaling.error("high_freq_factor", f"at least `low_freq_factor` ({low_freq_factor:g})")
    frequencies = rope.rotary_dim // 2
    is_long = rope_type == "longrope"
    return replace(
        rope,
        rope_type=rope_type,
        factor=scaling.number("factor", default=factor_default),
        original_max_position_embeddings=original,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        attention_factor=scaling.optional_number("attention_factor"),
        beta_fast=scaling.number("beta_fast", default=32.0),
        beta_slow=scaling.number("beta_slow", default=1.0),
        mscale=_weight(scaling, "mscale"),
        mscale_all_dim=_weight(scaling, "mscale_all_dim"),
        truncate=scaling.boolean("truncate", default=True),
        short_factors=scaling.numbers("short_factor", frequencies) if is_long else (),
        long_factors=scaling.numbers("long_factor", frequencies) if is_long else (),
    )


def _weight(scaling: JsonObject, key: str) -> float | None:
    """Reads a number above 0; None for 0 too, as in Transformers."""
    return scaling.optional_number(key) if scaling.plain().get(key) != 0 else None

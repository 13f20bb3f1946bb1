"""Hunyuan dense: QK norm after RoPE, and a fixed factor stretches the base."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..rotary import RopeSpec
from ..spec import AttentionSpec, DecoderSpec, QkNormSpec
from .common import Heads, attention, decoder, gated, pre_norm_layer, rms_norm
from .family import Family

HUNYUAN_NAMES = TensorNames(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")


def hunyuan_attention(config: JsonObject) -> AttentionSpec:
    """Also that of the mixtures of experts."""
    for key in ("use_cla", "use_mla"):
        if config.boolean(key, default=False):
            raise UnsupportedModel(f"`{key}` in config.json must be false for this family")
    mixer = replace(attention(config), rope=_rope(config))
    if not config.boolean("use_qk_norm", default=True):
        return mixer
    return replace(mixer, qk_norm=QkNormSpec(rms_norm(config), after_rope=True))


def _rope(config: JsonObject) -> RopeSpec:
    """Its "dynamic" with an `alpha` depends on no length: the base is multiplied once (NTK-aware scaling)."""
    size = Heads.of(config).size
    scaling = config.child("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    if "alpha" not in scaling:
        return parse_rope(config, size)
    plain = parse_rope(config, size, layer_type="none", scaled=False)
    theta = scaling.number("rope_theta") if "rope_theta" in scaling else plain.theta
    return replace(plain, theta=theta * scaling.number("alpha") ** (size / (size - 2)))


def _hunyuan(config: JsonObject) -> DecoderSpec:
    return decoder(config, pre_norm_layer(config, hunyuan_attention(config), gated(config)))


HUNYUAN = Family(
    "Hunyuan",
    _hunyuan,
    HUNYUAN_NAMES,
    {"rms_norm_eps": 1e-5},
    unread=("mlp_bias", "partial_rotary_factor"),
)

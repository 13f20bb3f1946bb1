"""Phi 3.5 MoE: layer norms, and a router that looks at near experts alone."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, HeadSpec, LayerSpec, NormSpec
from .common import attention, decoder, rms_norm, window
from .experts import mixture
from .family import Family

_NAMES = TensorNames(
    router="block_sparse_moe.gate",
    expert_gate="block_sparse_moe.experts.{expert}.w1",
    expert_up="block_sparse_moe.experts.{expert}.w3",
    expert_down="block_sparse_moe.experts.{expert}.w2",
)


def _phi_moe(config: JsonObject) -> DecoderSpec:
    if config.integer("num_experts_per_tok") != 2:
        raise config.error("num_experts_per_tok", "2: the router is made for that")
    experts = mixture(
        config,
        "num_local_experts",
        "intermediate_size",
        score="sparsemixer",
        norm=0,
        jitter=config.number("router_jitter_noise", default=0.01),
    )
    norm = NormSpec(rms_norm(config).eps, "layer", bias=True)
    tied, bias = (config.boolean(key, default=False) for key in ("tie_word_embeddings", "lm_head_bias"))
    layer = LayerSpec(_attention(config), experts, norm, norm)
    return decoder(config, layer, final_norm=norm, head=HeadSpec(tied=tied, bias=bias))


def _attention(config: JsonObject) -> AttentionSpec:
    """Its longrope names the factor of attention itself, for short and for long texts; the published ones are equal."""
    mixer = replace(attention(config), window=window(config))
    scaling = config.child("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    if mixer.rope is None or "short_mscale" not in scaling:
        return mixer
    factor = scaling.number("short_mscale")
    if scaling.number("long_mscale", default=factor) != factor:
        raise scaling.error("long_mscale", f"equal to `short_mscale` ({factor:g})")
    return replace(mixer, rope=replace(mixer.rope, attention_factor=factor))


PHI_MOE = Family(
    "Phi 3.5 MoE",
    _phi_moe,
    _NAMES,
    {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    },
    unread=("partial_rotary_factor",),
)

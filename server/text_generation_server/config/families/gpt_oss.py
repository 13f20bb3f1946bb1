"""gpt-oss: sinks and a window in every second layer, and experts with biases that are stored in MXFP4."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, LayerSpec
from .common import attention, by_layer_type, decoder, rms_norm, window
from .experts import mixture
from .family import Family

_NAMES = TensorNames(
    router="mlp.router",
    experts_layout="interleaved",
    expert_gate="mlp.experts.gate_up_proj",
    expert_down="mlp.experts.down_proj",
)
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss(config: JsonObject) -> DecoderSpec:
    # The kernels know the numbers of the published models.
    for key, value in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if config.number(key, default=value) != value:
            raise config.error(key, f"{value}")
    experts = mixture(config, "num_local_experts", "intermediate_size", bias=True)
    experts = replace(experts, activation="clamped_swiglu", bias=True)
    mixer = replace(attention(config), sinks=True)
    norm = replace(rms_norm(config), wide=True)
    full = LayerSpec(mixer, experts, norm, norm)
    sliding = replace(full, mixer=replace(mixer, window=window(config)))
    layers = by_layer_type(config, full, sliding, lambda index: index % 2 == 0)
    return decoder(config, layers, final_norm=norm)


GPT_OSS = Family(
    "gpt-oss",
    _gpt_oss,
    _NAMES,
    {
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": _ROPE,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "attention_bias": True,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 131072,
    },
    unread=("partial_rotary_factor",),
)

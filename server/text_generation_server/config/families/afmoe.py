"""Trinity of Arcee (AFMoE): gates on what heads read, four norms, RoPE only in layers with a window, and the experts of
DeepSeek V3.
"""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, EmbeddingSpec, QkNormSpec
from .common import attention, by_layer_type, decoder, gated, rms_norm, sandwich_layer, window, with_mixer
from .deepseek import sigmoid_routed
from .experts import shared_expert_names
from .family import Family


def _afmoe(config: JsonObject) -> DecoderSpec:
    for key, wanted in (("attention_bias", False), ("route_norm", True)):
        if config.boolean(key, default=wanted) != wanted:
            raise UnsupportedModel(f"`{key}` in config.json must be {str(wanted).lower()} for this family")
    norm = replace(rms_norm(config), wide=True)
    mixer = replace(attention(config), qk_norm=QkNormSpec(norm), output_gate="sigmoid")
    sliding = sandwich_layer(replace(mixer, window=window(config)), gated(config), norm)
    full = with_mixer(sliding, rope=None, window=0)
    interval = config.integer("global_attn_every_n_layers", default=4)
    layers = by_layer_type(config, full, sliding, lambda index: (index + 1) % interval != 0)
    experts, dense = sigmoid_routed(config), config.integer("num_dense_layers", default=1, minimum=0)
    layers = layers[:dense] + tuple(replace(layer, ffn=experts) for layer in layers[dense:])
    is_scaled = config.boolean("mup_enabled", default=False)
    scale = config.integer("hidden_size") ** 0.5 if is_scaled else 1.0
    return decoder(config, layers, norm, EmbeddingSpec(scale=scale))


def _names(config: JsonObject) -> TensorNames:
    return replace(
        shared_expert_names(0)(config),
        attention_gate="self_attn.gate_proj",
        ffn_norm="pre_mlp_layernorm",
        ffn_output_norm="post_mlp_layernorm",
        router="mlp.router.gate",
        router_correction="mlp.expert_bias",
    )


AFMOE = Family(
    "AFMoE",
    _afmoe,
    _names,
    {
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "moe_intermediate_size": 1408,
        "sliding_window": 1024,
        "max_position_embeddings": 16384,
    },
    aliases={
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "routed_scaling_factor": "route_scale",
        "scoring_func": "score_func",
    },
    unread=("mlp_bias", "n_group", "norm_topk_prob", "partial_rotary_factor", "topk_group"),
)

"""GLM 4.5 to 4.7: sigmoid routing with a correction, a shared network, and dense layers at the front."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, QkNormSpec
from .common import attention, decoder, gated, pre_norm_layer, rms_norm
from .experts import by_number, divided, groups, mixture
from .family import Family


def _names(config: JsonObject) -> TensorNames:
    shared = "mlp.shared_experts"
    # Behind the last layer, checkpoints have some that guess further tokens.
    first = config.integer("num_hidden_layers")
    extra = config.integer("num_nextn_predict_layers", default=1, minimum=0, maximum=16)
    return TensorNames(
        shared_gate=f"{shared}.gate_proj",
        shared_up=f"{shared}.up_proj",
        shared_down=f"{shared}.down_proj",
        ignored=tuple(f"model.layers.{first + index}.*" for index in range(extra)),
    )


def _glm(config: JsonObject) -> DecoderSpec:
    mixer = replace(attention(config), out_bias=False)
    if config.boolean("use_qk_norm", default=False):
        mixer = replace(mixer, qk_norm=QkNormSpec(rms_norm(config)))
    experts = mixture(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        score="sigmoid",
        norm=divided(config, default=True),
        scale=config.number("routed_scaling_factor", default=1.0),
        correction=True,
        wide=True,
    )
    route = replace(experts.route, **groups(config, experts.experts, experts.route.top_k))
    shared = config.integer("n_shared_experts", default=1, minimum=0, maximum=64)
    experts = replace(experts, route=route, shared_inner=shared * experts.inner)
    dense = pre_norm_layer(config, mixer, gated(config))
    first = config.integer("first_k_dense_replace", default=1, minimum=0)
    return decoder(config, by_number(config, dense, replace(dense, ffn=experts), lambda index: index >= first))


GLM4_MOE = Family(
    "GLM 4 MoE",
    _glm,
    _names,
    {
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "num_key_value_heads": 8,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "max_position_embeddings": 131072,
    },
)

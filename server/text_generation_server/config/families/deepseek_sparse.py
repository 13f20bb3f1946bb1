"""DeepSeek V3.2 and GLM 5: DeepSeek V3 whose tokens attend to the `index_topk` positions that an indexer chooses. Up to
so many positions it chooses all of them, so contexts of that length are those of V3; longer ones are not served.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec
from .common import decoder, gated, pre_norm_layer
from .deepseek import SIZES, sigmoid_routed
from .experts import by_number, mixed_by_type, shared_expert_names
from .family import Family
from .latent import latent_attention


def _sparse(config: JsonObject) -> DecoderSpec:
    dense = pre_norm_layer(config, latent_attention(config, interleaved=True), gated(config))
    mixed = replace(dense, ffn=sigmoid_routed(config))
    model = decoder(config, by_number(config, dense, mixed, mixed_by_type(config)))
    return replace(model, longest=config.integer("index_topk"))


def _names(config: JsonObject) -> TensorNames:
    names = shared_expert_names(1)(config)
    return replace(names, ignored=(*names.ignored, "*.self_attn.indexer.*"))


_DEFAULTS = {
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "index_topk": 2048,
}
_UNREAD = ("mlp_bias", "partial_rotary_factor")
DEEPSEEK_V32 = Family(
    "DeepSeek V3.2",
    _sparse,
    _names,
    {**SIZES, **_DEFAULTS, "n_group": 8, "topk_group": 4, "max_position_embeddings": 163840},
    older={"n_routed_experts": "num_experts"},
    unread=_UNREAD,
)
GLM5 = Family(
    "GLM 5",
    _sparse,
    _names,
    {
        **{**SIZES, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256},
        **_DEFAULTS,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202752,
    },
    older={"n_routed_experts": "num_experts"},
    unread=_UNREAD,
)

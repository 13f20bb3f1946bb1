"""LongCat Flash of Meituan: layers of two latent attentions and two dense networks, with experts beside all but the
first attention, some of which change nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import DecoderSpec, LatentAttentionSpec, MoeSpec
from .common import MOST_LAYERS, decoder, gated, pre_norm_layer
from .experts import MOST_EXPERTS, mixture
from .family import Family
from .latent import latent_attention

_WANTED: Mapping[str, object] = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "norm_topk_prob": False,
    "router_bias": False,
    "zero_expert_type": "identity",
}
"""Keys that published files have with these values alone."""


def _longcat(config: JsonObject) -> DecoderSpec:
    values = config.plain()
    for key, wanted in _WANTED.items():
        if values.get(key, wanted) not in (wanted, None):
            raise UnsupportedModel(f"`{key}` in config.json must be {wanted!r} for this family")
    last = pre_norm_layer(config, _latent(config), gated(config))
    first = replace(last, ahead=_experts(config))
    # Half of what a stored layer has is one here.
    return decoder(config, (first, last) * config.integer("num_hidden_layers", maximum=MOST_LAYERS))


def _latent(config: JsonObject) -> LatentAttentionSpec:
    """Both low-rank vectors have as large numbers as hidden states."""
    mixer, hidden = latent_attention(config, interleaved=True), config.integer("hidden_size")
    if not mixer.query_dim:
        raise config.error("q_lora_rank", "a number above 0")
    query, latent = ((hidden / size) ** 0.5 for size in (mixer.query_dim, mixer.latent_dim))
    return replace(mixer, query_scale=query, latent_scale=latent)


def _experts(config: JsonObject) -> MoeSpec:
    count = config.integer("zero_expert_num", default=0, minimum=0, maximum=MOST_EXPERTS)
    experts = mixture(
        config,
        "n_routed_experts",
        "moe_intermediate_size",
        norm=0,
        scale=config.number("routed_scaling_factor"),
        correction=True,
        wide=True,
    )
    return replace(experts, identity=count)


def _names(config: JsonObject) -> TensorNames:
    first = config.integer("n_routed_experts", maximum=MOST_EXPERTS)
    count = config.integer("zero_expert_num", default=0, minimum=0, maximum=MOST_EXPERTS)
    return TensorNames(
        parts=2,
        attention_norm="input_layernorm.{part}",
        ffn_norm="post_attention_layernorm.{part}",
        q_a="self_attn.{part}.q_a_proj",
        q_a_norm="self_attn.{part}.q_a_layernorm",
        q_b="self_attn.{part}.q_b_proj",
        kv_a="self_attn.{part}.kv_a_proj_with_mqa",
        kv_a_norm="self_attn.{part}.kv_a_layernorm",
        kv_b="self_attn.{part}.kv_b_proj",
        out="self_attn.{part}.o_proj",
        gate="mlps.{part}.gate_proj",
        up="mlps.{part}.up_proj",
        down="mlps.{part}.down_proj",
        router="mlp.router.classifier",
        router_correction="mlp.router.e_score_correction_bias",
        # Transformers writes matrices of the experts that change nothing, which it does not read.
        ignored=("model.mtp*", *(f"model.layers.*.mlp.experts.{first + index}.*" for index in range(count))),
    )


LONGCAT_FLASH = Family(
    "LongCat Flash",
    _longcat,
    _names,
    {
        "n_routed_experts": 512,
        "moe_topk": 12,
        "zero_expert_num": 256,
        "expert_ffn_hidden_size": 2048,
        "kv_lora_rank": 512,
        "max_position_embeddings": 131072,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e7,
        "routed_scaling_factor": 6.0,
        "v_head_dim": 128,
    },
    aliases={
        "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size",
        "num_experts_per_tok": "moe_topk",
        "num_hidden_layers": "num_layers",
    },
    unread=("mlp_bias", "partial_rotary_factor"),
)

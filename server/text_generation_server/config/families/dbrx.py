"""DBRX: clipped queries, keys and values, and experts whose tensors lie one below the other."""

from dataclasses import replace
from typing import Literal

from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, LayerSpec, MoeSpec, NormSpec, RouteSpec
from .common import ACTIVATIONS, MOST_HEADS, decoder
from .experts import MOST_EXPERTS
from .family import Family

_EPS = 1e-5
"""That of torch, because the file names none."""
_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="wte",
    final_norm="norm_f",
    layer="blocks.{}.",
    attention_norm="norm_attn_norm.norm_1",
    ffn_norm="norm_attn_norm.norm_2",
    qkv="norm_attn_norm.attn.Wqkv",
    out="norm_attn_norm.attn.out_proj",
    router="ffn.router.layer",
    experts_layout="rows",
    expert_gate="ffn.experts.mlp.w1",
    expert_up="ffn.experts.mlp.v1",
    expert_down="ffn.experts.mlp.w2",
)
_NORMS: dict[float, Literal[0, 1, 2]] = {0.0: 0, 1.0: 1, 2.0: 2}


def _dbrx(config: JsonObject) -> DecoderSpec:
    norm = NormSpec(_EPS, "layer")
    return decoder(config, LayerSpec(_attention(config), _experts(config), norm, norm), final_norm=norm)


def _attention(config: JsonObject) -> AttentionSpec:
    own = config.child("attn_config")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads", maximum=MOST_HEADS)
    kv_heads = own.integer("kv_n_heads", default=1)
    if hidden % heads or heads % kv_heads:
        raise config.error("num_attention_heads", f"a divisor of {hidden} and a multiple of {kv_heads}")
    rope = parse_rope(config, hidden // heads)
    if "rope_theta" in own:
        rope = replace(rope, theta=own.number("rope_theta"))
    clip = own.number("clip_qkv") if "clip_qkv" in own else 0.0
    return AttentionSpec(heads, kv_heads, hidden // heads, (hidden // heads) ** -0.5, rope, clip=clip)


def _experts(config: JsonObject) -> MoeSpec:
    own = config.child("ffn_config")
    experts = own.integer("moe_num_experts", default=4, maximum=MOST_EXPERTS)
    key = "moe_normalize_expert_weights"
    # Absent means 1, null that nothing is divided.
    norm = own.number(key, default=1.0) if key in own or key not in list(own) else 0.0
    if norm not in _NORMS:
        raise own.error(key, "1 or 2, or null")
    route = RouteSpec(own.integer("moe_top_k", default=1, maximum=experts), norm=_NORMS[norm])
    activation = own.child("ffn_act_fn").choice("name", ACTIVATIONS, default="silu")
    return MoeSpec(experts, own.integer("ffn_hidden_size", default=3584), activation, route)


DBRX = Family(
    "DBRX",
    _dbrx,
    _NAMES,
    {"max_seq_len": 2048},
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
    },
    unread=("partial_rotary_factor",),
)

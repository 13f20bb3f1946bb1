"""GPT-NeoX and Pythia, GPT-J and CodeGen: attention beside the feed-forward network, part of each head is rotated."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, HeadSpec, LayerSpec
from .common import GPT_KEYS, Heads, attention, decoder, layer_norm, plain
from .family import Family

_NEOX_NAMES = TensorNames(
    prefixes=("gpt_neox.",),
    embedding="embed_in",
    final_norm="final_layer_norm",
    head="embed_out",
    qkv="attention.query_key_value",
    qkv_layout="groups",
    out="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=("*rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias"),
)
_GPTJ_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="wte",
    final_norm="ln_f",
    layer="h.{}.",
    attention_norm="ln_1",
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    out="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
    ignored=("*.attn.bias", "*.attn.masked_bias"),
)
_CODEGEN_SHARDS = 4
"""By which the published models were trained."""
_CODEGEN_NAMES = replace(
    _GPTJ_NAMES,
    qkv="attn.qkv_proj",
    qkv_layout="shards",
    qkv_shards=_CODEGEN_SHARDS,
    qkv_values_first=True,
    ignored=(*_GPTJ_NAMES.ignored, "*.attn.causal_mask"),
)


def _neox(config: JsonObject) -> DecoderSpec:
    norm = layer_norm(config)
    is_parallel = config.boolean("use_parallel_residual", default=True)
    layer = LayerSpec(attention(config), plain(config, "intermediate_size"), norm, norm, parallel=is_parallel)
    return decoder(config, layer, norm)


def _gptj(config: JsonObject) -> DecoderSpec:
    heads, norm = Heads.of(config), layer_norm(config)
    rotary_dim = config.integer("rotary_dim", default=heads.size)
    if rotary_dim > heads.size or rotary_dim % 2:
        raise config.error("rotary_dim", f"even, and at most the head size ({heads.size})")
    rope = replace(parse_rope(config, heads.size, interleaved=True), rotary_dim=rotary_dim)
    mixer = AttentionSpec(heads.count, heads.kv, heads.size, heads.size**-0.5, rope)
    layer = LayerSpec(mixer, plain(config, "n_inner", "activation_function"), norm, None, parallel=True)
    head = HeadSpec(tied=config.boolean("tie_word_embeddings", default=False), bias=True)
    return decoder(config, layer, norm, head=head)


def _codegen(config: JsonObject) -> DecoderSpec:
    """GPT-J, whose queries, keys and values lie in one matrix. CodeGen 2 brings code, and lays it out otherwise."""
    if "AutoModelForCausalLM" in config.child("auto_map"):
        raise UnsupportedModel(
            "`AutoModelForCausalLM` in `auto_map` of config.json: CodeGen 2 has code of its own and is not supported; "
            "CodeGen 1 and 2.5 are"
        )
    if config.integer("num_attention_heads") % _CODEGEN_SHARDS:
        raise config.error("num_attention_heads", f"a multiple of {_CODEGEN_SHARDS}")
    return _gptj(config)


GPT_NEOX = Family(
    "GPT-NeoX and Pythia",
    _neox,
    _NEOX_NAMES,
    {"rotary_pct": 0.25, "attention_bias": True, "hidden_act": "gelu", "layer_norm_eps": 1e-5},
    aliases={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
    unread=("head_dim", "num_key_value_heads"),
)
_GPTJ_DEFAULTS = {
    "rotary_dim": 64,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "n_positions": 2048,
    "tie_word_embeddings": False,
}
_GPTJ_UNREAD = ("head_dim", "layer_norm_eps", "num_key_value_heads", "rope_parameters", "rope_scaling", "rope_theta")
GPTJ = Family(
    "GPT-J",
    _gptj,
    _GPTJ_NAMES,
    _GPTJ_DEFAULTS,
    aliases=GPT_KEYS,
    unread=_GPTJ_UNREAD,
)
CODEGEN = Family(
    "CodeGen",
    _codegen,
    _CODEGEN_NAMES,
    _GPTJ_DEFAULTS,
    aliases=GPT_KEYS,
    unread=_GPTJ_UNREAD,
)

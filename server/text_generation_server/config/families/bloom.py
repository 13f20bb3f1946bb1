"""BLOOM and MPT: ALiBi, or learned positions in some of MPT."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, DenseSpec, EmbeddingSpec, LayerSpec
from .alibi import mpt_slopes, slopes
from .common import Heads, decoder, layer_norm, optional
from .family import Family

_BLOOM_NAMES = TensorNames(
    prefixes=("transformer.", ""),
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    final_norm="ln_f",
    layer="h.{}.",
    qkv="self_attention.query_key_value",
    qkv_layout="groups",
    out="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    activation="mlp.gelu_impl",
)
_MPT_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="wte",
    positions="wpe",
    final_norm="norm_f",
    layer="blocks.{}.",
    attention_norm="norm_1",
    ffn_norm="norm_2",
    qkv="attn.Wqkv",
    out="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
    activation="ffn.act",
)

_ATTENTION = "multihead_attention"
_NORMS = ("low_precision_layernorm", "layernorm")


def _bloom(config: JsonObject) -> DecoderSpec:
    heads, norm = Heads.of(config), layer_norm(config)
    mixer = AttentionSpec(
        heads.count,
        heads.count,
        heads.size,
        heads.size**-0.5,
        rope=None,
        qkv_bias=True,
        out_bias=True,
        slopes=slopes(heads.count),
    )
    ffn = DenseSpec(4 * config.integer("hidden_size"), "gelu_tanh", gated=False, in_bias=True, out_bias=True)
    spec = decoder(config, LayerSpec(mixer, ffn, norm, norm), norm, EmbeddingSpec(norm=norm))
    normalised = config.boolean("apply_residual_connection_post_layernorm", default=False)
    return replace(spec, sum_is_normalised=normalised)


def _check_form(config: JsonObject, options: JsonObject) -> None:
    """Raises UnsupportedModel for what the code of its authors can do, and no published model of theirs does."""
    for key in ("qk_ln", "prefix_lm", "rope"):
        if options.boolean(key, default=False):
            raise UnsupportedModel(f"`{key}` in config.json must be false for this family")
    if options.string("attn_type", default=_ATTENTION) != _ATTENTION:
        raise UnsupportedModel(f"`attn_type` in config.json must be {_ATTENTION!r} for this family")
    if config.string("norm_type", default=_NORMS[0]) not in _NORMS:
        raise UnsupportedModel(f"`norm_type` in config.json must be one of {', '.join(_NORMS)} for this family")
    if "logit_scale" in config:
        raise UnsupportedModel("`logit_scale` in config.json must be null for this family")


def _mpt(config: JsonObject) -> DecoderSpec:
    """With ALiBi, or with learned positions; biases of matrices and norms are there or not, all alike."""
    options = config.child("attn_config")
    _check_form(config, options)
    alibi, bias = options.boolean("alibi", default=True), not config.boolean("no_bias", default=True)
    heads, norm = Heads.of(config), layer_norm(config, bias=bias)
    mixer = AttentionSpec(
        heads.count,
        heads.count,
        heads.size,
        options.number("softmax_scale", default=heads.size**-0.5),
        rope=None,
        qkv_bias=bias,
        out_bias=bias,
        slopes=mpt_slopes(heads.count, options.number("alibi_bias_max", default=8.0)) if alibi else (),
        clip=optional(options, "clip_qkv"),
    )
    inner = config.integer("expansion_ratio", default=4) * config.integer("hidden_size")
    ffn = DenseSpec(inner, "gelu", gated=False, in_bias=bias, out_bias=bias)
    has_positions = not alibi and config.boolean("learned_pos_emb", default=True)
    embedding = EmbeddingSpec(positions=config.integer("max_position_embeddings") if has_positions else 0)
    return decoder(config, LayerSpec(mixer, ffn, norm, norm), norm, embedding)


BLOOM = Family(
    "BLOOM",
    _bloom,
    _BLOOM_NAMES,
    {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "seq_length",
    {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embed"},
    unread=("head_dim", "layer_norm_eps", "max_position_embeddings", "num_key_value_heads"),
)
MPT = Family(
    "MPT",
    _mpt,
    _MPT_NAMES,
    {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "max_seq_len": 2048, "expansion_ratio": 4},
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
    },
    unread=("head_dim", "layer_norm_eps", "num_key_value_heads"),
)

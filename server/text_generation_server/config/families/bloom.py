"""BLOOM and MPT: ALiBi instead of positions."""

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
)
_MPT_NAMES = TensorNames(
    prefixes=("transformer.",),
    embedding="wte",
    final_norm="norm_f",
    layer="blocks.{}.",
    attention_norm="norm_1",
    ffn_norm="norm_2",
    qkv="attn.Wqkv",
    out="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
)


def _bloom(config: JsonObject) -> DecoderSpec:
    if config.boolean("apply_residual_connection_post_layernorm", default=False):
        raise UnsupportedModel("`apply_residual_connection_post_layernorm` in config.json must be false")
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
    return decoder(config, LayerSpec(mixer, ffn, norm, norm), norm, EmbeddingSpec(norm=norm))


def _mpt(config: JsonObject) -> DecoderSpec:
    options = config.child("attn_config")
    for source, key, needed in (
        (config, "no_bias", True),
        (options, "alibi", True),
        (options, "qk_ln", False),
        (options, "prefix_lm", False),
    ):
        if source.boolean(key, default=needed) != needed:
            raise UnsupportedModel(f"`{key}` in config.json must be {str(needed).lower()} for this family")
    heads, norm = Heads.of(config), layer_norm(config, bias=False)
    mixer = AttentionSpec(
        heads.count,
        heads.count,
        heads.size,
        options.number("softmax_scale", default=heads.size**-0.5),
        rope=None,
        slopes=mpt_slopes(heads.count, options.number("alibi_bias_max", default=8.0)),
        clip=optional(options, "clip_qkv"),
    )
    inner = config.integer("expansion_ratio", default=4) * config.integer("hidden_size")
    return decoder(config, LayerSpec(mixer, DenseSpec(inner, "gelu", gated=False), norm, norm), norm)


BLOOM = Family(
    "BLOOM",
    _bloom,
    _BLOOM_NAMES,
    {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "seq_length",
    {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embed"},
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
)

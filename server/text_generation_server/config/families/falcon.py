"""Falcon in its three forms: 7B, 40B and RW, which differ in layout, norms and positions."""

from ..json_object import JsonObject
from ..names import TensorNames
from ..rope import parse_rope
from ..spec import AttentionSpec, DecoderSpec, LayerSpec
from .alibi import slopes
from .common import Heads, decoder, layer_norm, plain
from .family import Family


def _names(config: JsonObject) -> TensorNames:
    one_kv_head = not _is_new(config) and config.boolean("multi_query", default=True)
    two_norms = _norms(config) == 2 and _is_parallel(config)
    return TensorNames(
        prefixes=("transformer.",),
        embedding="word_embeddings",
        final_norm="ln_f",
        layer="h.{}.",
        attention_norm="ln_attn" if two_norms else "input_layernorm",
        ffn_norm="ln_mlp" if two_norms else "post_attention_layernorm",
        qkv="self_attention.query_key_value",
        qkv_layout="blocks" if one_kv_head else "groups",
        out="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )


def _is_new(config: JsonObject) -> bool:
    """Files from before the key existed say it by their type: RefinedWeb is the 40B, RefinedWebModel are the others."""
    is_40b = config.string("model_type", default="") == "RefinedWeb"
    return config.boolean("new_decoder_architecture", default=is_40b)


def _is_parallel(config: JsonObject) -> bool:
    return _is_new(config) or config.boolean("parallel_attn", default=True)


def _norms(config: JsonObject) -> int:
    """Returns how many norms a layer with parallel sublayers has."""
    return config.integer("num_ln_in_parallel_attn", default=2 if _is_new(config) else 1, maximum=2)


def _attention(config: JsonObject) -> AttentionSpec:
    heads = Heads.of(config)
    kv_heads = heads.count
    if _is_new(config):
        kv_heads = config.integer("num_kv_heads", default=heads.count)
    elif config.boolean("multi_query", default=True):
        kv_heads = 1
    if heads.count % kv_heads:
        raise config.error("num_kv_heads", f"a divisor of the number of attention heads ({heads.count})")
    scale, bias = heads.size**-0.5, config.boolean("bias", default=False)
    has_alibi = config.boolean("alibi", default=False)
    # The distance is added before scores are scaled.
    falls = tuple(slope * scale for slope in slopes(heads.count)) if has_alibi else ()
    rope = None if has_alibi else parse_rope(config, heads.size)
    return AttentionSpec(heads.count, kv_heads, heads.size, scale, rope, bias, bias, slopes=falls)


def _falcon(config: JsonObject) -> DecoderSpec:
    norm, is_parallel = layer_norm(config), _is_parallel(config)
    bias = config.boolean("bias", default=False)
    ffn = plain(config, "ffn_hidden_size", "activation", bias=bias)
    second = norm if not is_parallel or _norms(config) == 2 else None
    return decoder(config, LayerSpec(_attention(config), ffn, norm, second, parallel=is_parallel), norm)


FALCON = Family(
    "Falcon",
    _falcon,
    _names,
    {
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "multi_query": True,
        "parallel_attn": True,
    },
    older={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_kv_heads": "n_head_kv",
    },
    unread=("layer_norm_eps", "num_key_value_heads", "partial_rotary_factor"),
)

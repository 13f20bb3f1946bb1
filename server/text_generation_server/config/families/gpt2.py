"""GPT-2, and StarCoder, which is GPT-2 with one K and V head: learned positions, feed-forward networks without a
gate.
"""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec
from .common import GPT_KEYS, MOST_LAYERS, Heads, decoder, layer_norm, plain
from .family import Family

_NAMES = TensorNames(
    prefixes=("transformer.", ""),
    embedding="wte",
    positions="wpe",
    final_norm="ln_f",
    layer="h.{}.",
    attention_norm="ln_1",
    ffn_norm="ln_2",
    qkv="attn.c_attn",
    out="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    ignored=("*.attn.bias", "*.attn.masked_bias"),
)
_DEFAULTS = {
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
}


def _attention(config: JsonObject, kv_heads: int) -> AttentionSpec:
    heads = Heads.of(config)
    scale = heads.size**-0.5 if config.boolean("scale_attn_weights", default=True) else 1.0
    return AttentionSpec(heads.count, kv_heads, heads.size, scale, rope=None, qkv_bias=True, out_bias=True)


def _model(config: JsonObject, mixers: list[AttentionSpec]) -> DecoderSpec:
    norm, ffn = layer_norm(config), plain(config, "n_inner", "activation_function")
    layers = tuple(LayerSpec(mixer, ffn, norm, norm) for mixer in mixers)
    return decoder(config, layers, norm, EmbeddingSpec(positions=config.integer("max_position_embeddings")))


def _gpt2(config: JsonObject) -> DecoderSpec:
    mixer = _attention(config, Heads.of(config).count)
    by_layer = config.boolean("scale_attn_by_inverse_layer_idx", default=False)
    count = config.integer("num_hidden_layers", maximum=MOST_LAYERS)
    scales = [mixer.scale / (index + 1) if by_layer else mixer.scale for index in range(count)]
    return _model(config, [replace(mixer, scale=scale) for scale in scales])


def _starcoder(config: JsonObject) -> DecoderSpec:
    kv_heads = 1 if config.boolean("multi_query", default=True) else Heads.of(config).count
    return _model(config, [_attention(config, kv_heads)] * config.integer("num_hidden_layers", maximum=MOST_LAYERS))


def _starcoder_names(config: JsonObject) -> TensorNames:
    """With as many K and V heads as query heads, each head has its rows together."""
    is_multi_query = config.boolean("multi_query", default=True)
    return replace(_NAMES, qkv_layout="blocks" if is_multi_query else "groups")


GPT2 = Family(
    "GPT-2",
    _gpt2,
    replace(_NAMES, transposed=True),
    {**_DEFAULTS, "activation_function": "gelu_new"},
    aliases=GPT_KEYS,
    unread=("head_dim", "layer_norm_eps", "num_key_value_heads"),
)
STARCODER = Family(
    "StarCoder (GPTBigCode)",
    _starcoder,
    _starcoder_names,
    {**_DEFAULTS, "activation_function": "gelu_pytorch_tanh", "multi_query": True},
    aliases=GPT_KEYS,
    unread=("head_dim", "layer_norm_eps"),
)

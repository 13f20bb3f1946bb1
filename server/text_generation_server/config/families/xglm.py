"""XGLM: a pre-norm decoder with the sinusoidal positions of the original transformer, which no file holds."""

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec, NormSpec
from .common import Heads, decoder, plain
from .family import Family

_FIRST_POSITION = 2


def _xglm(config: JsonObject) -> DecoderSpec:
    if config.boolean("add_cross_attention", default=False):
        raise UnsupportedModel("`add_cross_attention` in config.json: models with an encoder are not supported")
    heads, hidden = Heads.of(config), config.integer("hidden_size")
    if hidden < 4 or hidden % 2:
        raise config.error("hidden_size", "even, and at least 4: half of a position are sines, half are cosines")
    mixer = AttentionSpec(heads.count, heads.count, heads.size, heads.size**-0.5, None, qkv_bias=True, out_bias=True)
    norm = NormSpec(1e-5, kind="layer", bias=True)
    embedding = EmbeddingSpec(
        scale=hidden**0.5 if config.boolean("scale_embedding", default=True) else 1.0,
        positions=config.integer("max_position_embeddings") + _FIRST_POSITION,
        first_position=_FIRST_POSITION,
        sinusoidal=True,
    )
    layer = LayerSpec(mixer, plain(config, "ffn_dim", "activation_function"), norm, norm)
    return decoder(config, layer, norm, embedding)


XGLM = Family(
    "XGLM",
    _xglm,
    TensorNames(
        final_norm="layer_norm",
        attention_norm="self_attn_layer_norm",
        ffn_norm="final_layer_norm",
        out="self_attn.out_proj",
        up="fc1",
        down="fc2",
        ignored=("*embed_positions.weights",),
    ),
    {
        "activation_function": "gelu",
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    aliases={"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"},
    unread=("head_dim", "num_key_value_heads"),
)

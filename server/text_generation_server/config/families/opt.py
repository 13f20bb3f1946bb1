"""OPT: learned positions that begin at row 2."""

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec
from .common import Heads, decoder, layer_norm, plain
from .family import Family

_FIRST_POSITION = 2


def _opt(config: JsonObject) -> DecoderSpec:
    hidden = config.integer("hidden_size")
    if not config.boolean("do_layer_norm_before", default=True):
        raise UnsupportedModel("`do_layer_norm_before` in config.json must be true: OPT 350M is built differently")
    if config.integer("word_embed_proj_dim", default=hidden) != hidden:
        raise config.error("word_embed_proj_dim", f"equal to `hidden_size` ({hidden})")
    if config.boolean("_remove_final_layer_norm", default=False):
        raise UnsupportedModel("`_remove_final_layer_norm` in config.json must be false")
    heads, norm, bias = Heads.of(config), layer_norm(config), config.boolean("enable_bias", default=True)
    mixer = AttentionSpec(heads.count, heads.count, heads.size, heads.size**-0.5, None, bias, bias)
    ffn = plain(config, "ffn_dim", "activation_function", bias=bias)
    rows = config.integer("max_position_embeddings") + _FIRST_POSITION
    embedding = EmbeddingSpec(positions=rows, first_position=_FIRST_POSITION)
    return decoder(config, LayerSpec(mixer, ffn, norm, norm), norm, embedding)


OPT = Family(
    "OPT",
    _opt,
    TensorNames(
        prefixes=("model.decoder.", "decoder."),
        final_norm="final_layer_norm",
        attention_norm="self_attn_layer_norm",
        ffn_norm="final_layer_norm",
        out="self_attn.out_proj",
        up="fc1",
        down="fc2",
    ),
    {
        "activation_function": "relu",
        "enable_bias": True,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
)

"""OPT: learned positions that begin at row 2. The 350M model is post-norm and has a narrow embedding."""

from dataclasses import replace

from ..json_object import JsonObject
from ..names import TensorNames
from ..spec import AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec
from .common import Heads, decoder, layer_norm, plain
from .family import Family

_FIRST_POSITION = 2


def _opt(config: JsonObject) -> DecoderSpec:
    hidden = config.integer("hidden_size")
    width = config.integer("word_embed_proj_dim", default=hidden)
    before = config.boolean("do_layer_norm_before", default=True)
    heads, norm, bias = Heads.of(config), layer_norm(config), config.boolean("enable_bias", default=True)
    if not config.boolean("layer_norm_elementwise_affine", default=True):
        # As in Galactica.
        norm = replace(norm, weight=False, bias=False)
    mixer = AttentionSpec(heads.count, heads.count, heads.size, heads.size**-0.5, None, bias, bias)
    ffn = plain(config, "ffn_dim", "activation_function", bias=bias)
    rows = config.integer("max_position_embeddings") + _FIRST_POSITION
    embedding = EmbeddingSpec(positions=rows, first_position=_FIRST_POSITION, width=0 if width == hidden else width)
    layer = LayerSpec(mixer, ffn, norm, norm) if before else LayerSpec(mixer, ffn, None, None, norm, norm)
    spec = decoder(config, layer, norm, embedding)
    if not before or config.boolean("_remove_final_layer_norm", default=False):
        spec = replace(spec, final_norm=None)
    return replace(spec, sum_is_normalised=not before)


OPT = Family(
    "OPT",
    _opt,
    TensorNames(
        prefixes=("model.decoder.", "decoder."),
        final_norm="final_layer_norm",
        attention_norm="self_attn_layer_norm",
        attention_output_norm="self_attn_layer_norm",
        ffn_norm="final_layer_norm",
        ffn_output_norm="final_layer_norm",
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
    unread=("head_dim", "layer_norm_eps", "num_key_value_heads"),
)

"""Granite and MiniCPM: scaled embeddings, residuals, attention scores and logits."""

from dataclasses import replace

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..spec import DecoderSpec, EmbeddingSpec, HeadSpec
from .common import attention, decoder, gated, pre_norm_layer
from .family import Family


def granite_decoder(config: JsonObject) -> DecoderSpec:
    """Dense layers."""
    mixer = replace(attention(config), scale=config.number("attention_multiplier", default=1.0))
    return decoder(
        config,
        pre_norm_layer(config, mixer, gated(config)),
        embedding=EmbeddingSpec(scale=config.number("embedding_multiplier", default=1.0)),
        head=HeadSpec(
            tied=config.boolean("tie_word_embeddings", default=False),
            scale=1.0 / config.number("logits_scaling", default=1.0),
        ),
        residual_scale=config.number("residual_multiplier", default=1.0),
    )


def _minicpm(config: JsonObject) -> DecoderSpec:
    if "num_experts" in config:
        raise UnsupportedModel("`num_experts` in config.json: mixtures of experts of MiniCPM are not supported")
    if "sparse_config" in config:
        raise UnsupportedModel(
            "`sparse_config` in config.json: attention to chosen blocks is not implemented; without this key, the "
            "model attends to everything"
        )
    width = config.integer("hidden_size") / config.number("dim_model_base", default=1.0)
    depth = config.integer("num_hidden_layers")
    return decoder(
        config,
        pre_norm_layer(config, attention(config), gated(config)),
        embedding=EmbeddingSpec(scale=config.number("scale_emb", default=1.0)),
        head=HeadSpec(tied=config.boolean("tie_word_embeddings", default=True), scale=1.0 / width),
        residual_scale=config.number("scale_depth", default=1.0) / depth**0.5,
    )


GRANITE = Family("Granite", granite_decoder, unread=("partial_rotary_factor",))
MINICPM = Family(
    "MiniCPM",
    _minicpm,
    defaults={"tie_word_embeddings": True},
    unread=("head_dim", "mlp_bias", "partial_rotary_factor"),
)

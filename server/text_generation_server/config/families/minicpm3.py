"""MiniCPM 3: latent attention in MiniCPM's frame of scaled embeddings, residuals and logits."""

from ..json_object import JsonObject
from ..spec import DecoderSpec, EmbeddingSpec, HeadSpec
from .common import decoder, gated, pre_norm_layer
from .family import Family
from .latent import latent_attention


def _minicpm3(config: JsonObject) -> DecoderSpec:
    hidden, depth = config.integer("hidden_size"), config.integer("num_hidden_layers")
    return decoder(
        config,
        pre_norm_layer(config, latent_attention(config, interleaved=False), gated(config)),
        embedding=EmbeddingSpec(scale=config.number("scale_emb", default=1.0)),
        head=HeadSpec(
            tied=config.boolean("tie_word_embeddings", default=True),
            scale=config.number("dim_model_base", default=hidden) / hidden,
        ),
        residual_scale=config.number("scale_depth", default=depth**0.5) / depth**0.5,
    )


MINICPM3 = Family(
    "MiniCPM 3",
    _minicpm3,
    defaults={
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    },
)

"""Readings of `config.json` that models with latent attention share."""

from ...errors import UnsupportedModel
from ..json_object import JsonObject
from ..rope import parse_rope
from ..spec import LatentAttentionSpec
from .common import MOST_HEADS

_MOST_LATENT = 512
"""Largest latent vector of the kernels, which hold as many accumulators for each head."""
_NORM_EPS = 1e-6
"""Of the normalisations within attention, whatever `rms_norm_eps` is."""


def latent_attention(
    config: JsonObject, interleaved: bool, rotates: bool = True, shares: bool = True
) -> LatentAttentionSpec:
    """Under DeepSeek's keys. `interleaved`: neighbours are one pair; `rotates`: whether there is RoPE; `shares`:
    whether all heads share a key.
    """
    if config.boolean("attention_bias", default=False):
        raise UnsupportedModel("`attention_bias` in config.json is not implemented for latent attention")
    heads = config.integer("num_attention_heads", maximum=MOST_HEADS)
    rope_dim = config.integer("qk_rope_head_dim", minimum=2, maximum=_MOST_LATENT) if shares else 0
    if rope_dim % 2:
        raise config.error("qk_rope_head_dim", "even: rotary embedding rotates pairs")
    return LatentAttentionSpec(
        num_heads=heads,
        latent_dim=config.integer("kv_lora_rank", maximum=_MOST_LATENT),
        rope_dim=rope_dim,
        key_dim=config.integer("qk_nope_head_dim"),
        value_dim=config.integer("v_head_dim", default=max(1, config.integer("hidden_size") // heads)),
        rope=parse_rope(config, rope_dim, interleaved) if rotates else None,
        norm_eps=_NORM_EPS,
        # `null` stands for none.
        query_dim=config.integer("q_lora_rank") if "q_lora_rank" in config else 0,
    )

"""In which number type keys and values are stored: what was asked for, else what the checkpoint wants."""

from typing import Literal, get_args

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .implementation import AnyModelConfig
from .spec import AttentionSpec, LatentAttentionSpec

KvCacheDtype = Literal["auto", "fp8_e4m3fn", "fp8_e5m2", "int8"]
"""`auto`: what the checkpoint wants, which is the model's type unless it was calibrated for another one."""
KV_CACHE_DTYPES: tuple[KvCacheDtype, ...] = get_args(KvCacheDtype)
QuantisedKvCache = Literal["fp8_e4m3fn", "fp8_e5m2", "int8"]

_MULTIPLE = 4
"""Kernels read so many codes as one word."""


def quantised_kv_cache(asked: KvCacheDtype, model: AnyModelConfig) -> QuantisedKvCache | None:
    """The type of 8 bits in which this model's keys and values are stored; None for the model's own type.

    Raises `ConfigurationError` for a model whose keys and values cannot be stored so.
    """
    if isinstance(model, FallbackConfig):
        if asked == "auto":
            return None
        raise ConfigurationError(
            f"--kv-cache-dtype {asked} is not there for {model.architecture}, which runs through Transformers: "
            "leave it out"
        )
    dtype = model.schemes.kv_cache if asked == "auto" else asked
    if dtype is None:
        return None
    remedy = "leave --kv-cache-dtype out" + (", and `kv_cache_scheme` out of config.json" if asked == "auto" else "")
    attentions = [layer.attention for layer in model.decoder.layers]
    if any(isinstance(each, LatentAttentionSpec) for each in attentions):
        raise ConfigurationError(
            f"--kv-cache-dtype {dtype} is not there for {model.architecture}, whose cache holds latent vectors in the "
            f"model's type: {remedy}"
        )
    sizes = sorted({each.head_dim for each in attentions if isinstance(each, AttentionSpec)})
    if any(size % _MULTIPLE for size in sizes):
        raise ConfigurationError(
            f"--kv-cache-dtype {dtype} needs heads whose size is a multiple of {_MULTIPLE}, and those of this model "
            f"have {', '.join(map(str, sizes))}: {remedy}"
        )
    return dtype

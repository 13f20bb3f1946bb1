"""Number type of the KV cache: that of the operator, else that of the checkpoint."""

import logging
from typing import Literal, get_args

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .implementation import AnyModelConfig
from .model import ModelConfig
from .spec import AttentionSpec, LatentAttentionSpec

KvCacheDtype = Literal["auto", "fp8_e4m3fn", "fp8_e5m2", "int8"]
"""`auto` uses the type that the checkpoint is calibrated for, else the model's type."""
KV_CACHE_DTYPES: tuple[KvCacheDtype, ...] = get_args(KvCacheDtype)
QuantisedKvCache = Literal["fp8_e4m3fn", "fp8_e5m2", "int8"]

logger = logging.getLogger(__name__)

KV_MULTIPLE = 4
"""Kernels read so many quantised values as one word."""


def quantised_kv_cache(asked: KvCacheDtype, model: AnyModelConfig) -> QuantisedKvCache | None:
    """Returns the 8-bit type of this model's KV cache; None for the model's own type.

    Raises `ConfigurationError` for a model that cannot have the type that the operator chose; of a class of
    Transformers `check_kv_cache` finds that out. A type that only the checkpoint wants is ignored with a warning where
    the model cannot have it, and where it is one of these classes.
    """
    if isinstance(model, FallbackConfig):
        return _of_class(asked, model)
    obstacle = _obstacle(model)
    if asked == "auto":
        dtype = model.schemes.kv_cache
        if dtype is not None and obstacle is not None:
            logger.warning("keys and values keep the model's type: %s, as the checkpoint wants it, %s", dtype, obstacle)
        return None if obstacle is not None else dtype
    if obstacle is not None:
        raise ConfigurationError(f"--kv-cache-dtype {asked} {obstacle}: leave --kv-cache-dtype out")
    return asked


def _of_class(asked: KvCacheDtype, model: FallbackConfig) -> QuantisedKvCache | None:
    """Scales that a checkpoint was calibrated with are not read; those of each token are measured."""
    if asked != "auto":
        return asked
    if (dtype := model.schemes.kv_cache) is not None:
        logger.warning(
            "keys and values keep the model's type, as calibrated scales are not read of models that run through "
            "Transformers; with --kv-cache-dtype %s they have 8 bits and scales that are measured",
            dtype,
        )
    return None


def _obstacle(model: ModelConfig) -> str | None:
    """Returns why this model cannot have an 8-bit KV cache, or None."""
    mixers = model.decoder.mixers
    if any(isinstance(each, LatentAttentionSpec) for each in mixers):
        return f"is not there for {model.architecture}, whose cache holds latent vectors in the model's type"
    if any(isinstance(each, AttentionSpec) and each.indexer is not None for each in mixers):
        return f"is not there for {model.architecture}, whose heads attend to blocks of positions of their own"
    sizes = sorted({each.head_dim for each in mixers if isinstance(each, AttentionSpec)})
    if any(size % KV_MULTIPLE for size in sizes):
        found = ", ".join(map(str, sizes))
        return f"needs heads whose size is a multiple of {KV_MULTIPLE}, and those of this model have {found}"
    return None

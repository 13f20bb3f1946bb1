"""Number type of the KV cache: that of the operator, else that of the checkpoint."""

import logging
from typing import Literal, get_args

from ..errors import ConfigurationError
from .fallback import FallbackConfig
from .implementation import AnyModelConfig
from .model import ModelConfig
from .spec import AttentionSpec, CompressedAttentionSpec, LatentAttentionSpec

KvCacheDtype = Literal["auto", "fp8_e4m3fn", "fp8_e5m2", "int8", "int4"]
"""`auto` uses the type that the checkpoint is calibrated for, else the model's type."""
KV_CACHE_DTYPES: tuple[KvCacheDtype, ...] = get_args(KvCacheDtype)
QuantisedKvCache = Literal["fp8_e4m3fn", "fp8_e5m2", "int8", "int4"]

logger = logging.getLogger(__name__)


def kv_multiple(asked: QuantisedKvCache) -> int:
    """Returns how many quantised values kernels read as one word."""
    return 8 if asked == "int4" else 4


def other_kv_caches(asked: QuantisedKvCache) -> str:
    """Returns the remedy for heads that this type does not take."""
    remedy = "leave --kv-cache-dtype out"
    return f"set --kv-cache-dtype int8, which needs multiples of 4, or {remedy}" if asked == "int4" else remedy


def quantised_kv_cache(asked: KvCacheDtype, model: AnyModelConfig) -> QuantisedKvCache | None:
    """Returns the type of 8 or 4 bits of this model's KV cache; None for the model's own type.

    Raises `ConfigurationError` for a model that cannot have the type that the operator chose; of a class of
    Transformers `check_kv_cache` finds that out. A type that only the checkpoint wants is ignored with a warning where
    the model cannot have it, and where it is one of these classes.
    """
    if isinstance(model, FallbackConfig):
        return _of_class(asked, model)
    dtype = model.schemes.kv_cache if asked == "auto" else asked
    obstacle = None if dtype is None else _obstacle(dtype, model)
    if dtype is None or obstacle is None:
        return dtype
    why, remedy = obstacle
    if asked == "auto":
        logger.warning("keys and values keep the model's type: %s, as the checkpoint wants it, %s", dtype, why)
        return None
    raise ConfigurationError(f"--kv-cache-dtype {asked} {why}: {remedy}")


def kv_cache_bytes(dtype: QuantisedKvCache, head_dim: int) -> int:
    """Returns the bytes of a quantised key or value with its scales, as `CacheShape` has them."""
    if dtype != "int4":
        return head_dim + 2
    groups = 1 << min(3, ((head_dim - 1) // 64).bit_length())
    return head_dim // 2 + 4 * groups


def _of_class(asked: KvCacheDtype, model: FallbackConfig) -> QuantisedKvCache | None:
    """Scales that a checkpoint was calibrated with are not read; those of each token are measured."""
    if asked != "auto":
        return asked
    if (dtype := model.schemes.kv_cache) is not None:
        logger.warning(
            "keys and values keep the model's type, as calibrated scales are not read of models that run through "
            "Transformers; with --kv-cache-dtype %s they have scales that are measured",
            dtype,
        )
    return None


def _obstacle(asked: QuantisedKvCache, model: ModelConfig) -> tuple[str, str] | None:
    """Returns why this model cannot have that KV cache, and a remedy, or None."""
    mixers, remedy = model.decoder.mixers, "leave --kv-cache-dtype out"
    if any(isinstance(each, LatentAttentionSpec) for each in mixers):
        return f"is not there for {model.architecture}, whose cache holds latent vectors in the model's type", remedy
    if any(isinstance(each, CompressedAttentionSpec) for each in mixers):
        return f"is not there for {model.architecture}, whose cache holds compressed positions beside keys", remedy
    if any(isinstance(each, AttentionSpec) and each.indexer is not None for each in mixers):
        return f"is not there for {model.architecture}, whose heads attend to blocks of positions of their own", remedy
    sizes, multiple = sorted({each.head_dim for each in mixers if isinstance(each, AttentionSpec)}), kv_multiple(asked)
    if any(size % multiple for size in sizes):
        found = ", ".join(map(str, sizes))
        why = f"needs heads whose size is a multiple of {multiple}, and those of this model have {found}"
        return why, other_kv_caches(asked)
    return None

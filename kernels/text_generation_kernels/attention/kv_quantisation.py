"""KV-cache quantisation: 8-bit codes, with a measured or given scale for each slot and head.

    value = scale * code,   code = round(value / scale),   scale = round_up(largest absolute value / CODE_OF_AMAX)

The dtype of a cache names its format: float8_e4m3fn, float8_e5m2, or uint8 for int8, where the number u stands for
u - 128: two cheap instructions make a float16 of a biased code, which a signed one does not allow.
Layout: `scales` `[slots, kv_heads, 2]` bfloat16 hold those of keys and of values side by side, so that one load brings
both. Attention reads them with the codes, so they have 16 bits, with exponents as wide as those of float32.

A measured scale is rounded up, so that the largest value of a head does not saturate, and codes are made with the
rounded scale: steps between codes are at most 2 ** -7 wider. A scale depends on one head of one token alone, not on the
batch, on where a prompt is cut, or on which rank computed it.
"""

import torch
from torch import Tensor

from ._kv_conversion import E4M3, E5M2, INT8
from .kv_cache import KvCache

KV_CODES = {"fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.uint8}
"""Dtype of a cache by the name of its format."""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.uint8: 127.0}
"""Largest value of a code, by the dtype of a cache that holds codes."""
CODE_OF_AMAX = LARGEST | {torch.float8_e5m2: 1.75}
"""Code of a head's largest value, where the scale is measured. float8_e5m2 has far more exponents than a head needs and
leaves the upper half unused, so that its scales are as large as those of the other formats and fit into float16.
"""
FORMATS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2, torch.uint8: INT8}
"""Format numbers of the kernels; 0 is a cache of values."""
SMALLEST_AMAX = 1e-6
"""Least amax of a head, so that no scale is 0."""


def format_of(cache: Tensor) -> int:
    """Format number of a cache, 0 where it holds values."""
    return FORMATS.get(cache.dtype, 0)


def check_codes(name: str, cache: KvCache) -> None:
    """Raises ValueError where codes and scales do not have these layouts, or one lacks the other."""
    k_cache, v_cache, scales = cache.k, cache.v, cache.scales
    if (scales is None) == bool(format_of(k_cache)) or k_cache.dtype != v_cache.dtype:
        raise ValueError(
            f"{name}: caches of {k_cache.dtype} and {v_cache.dtype} do not go "
            f"with{'out' if scales is None else ''} scales"
        )
    if scales is None:
        return
    slots, kv_heads, _ = k_cache.shape
    if scales.shape != (slots, kv_heads, 2) or scales.dtype != torch.bfloat16 or scales.stride(2) != 1:
        raise ValueError(f"{name}: scales must be bfloat16 [slots, kv_heads, 2], not {scales.dtype} {scales.shape}")
    sizes = [size for each in (k_cache, v_cache) for size in (each.shape[2], *each.stride()[:2])]
    if any(size % 4 for size in sizes):
        raise ValueError(f"{name}: head sizes and strides of codes must be multiples of 4, not {sizes}")


def as_bytes(cache: Tensor) -> Tensor:
    """View of a cache of codes as uint8; a cache of values unchanged."""
    return cache.view(torch.uint8) if format_of(cache) else cache


def as_words(cache: Tensor) -> Tensor:
    """View of a cache of codes as int32 words of four; a cache of values unchanged."""
    return cache.view(torch.int32) if format_of(cache) else cache


def as_pairs(scales: Tensor | None) -> Tensor | None:
    """View of scales as int32 `[slots, kv_heads, 1]`: that of keys in the low half."""
    return None if scales is None else scales.view(torch.int32)


def round_up(scales: Tensor) -> Tensor:
    """float32 `scales`, positive or NaN, rounded up to bfloat16.

    A bfloat16 is the upper half of a float32: where the lower half is not 0, adding ones to it carries. NaN is kept
    apart: its bits may be all ones, of which a carry would make 0.
    """
    bits = scales.view(torch.int32) + torch.where(scales.isnan(), 0, 0xFFFF).int()
    return (bits & -0x10000).view(torch.float32).bfloat16()


def quantise(values: Tensor, dtype: torch.dtype, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes of `values` [..., head_dim], and their scales [...] bfloat16: measured, or the given `scales`.

    Values saturate. A head with an element that is not finite gets the scale NaN, so that it reads as NaN.
    """
    wide, largest = values.float(), LARGEST[dtype]
    if scales is None:
        amax = wide.abs().amax(dim=-1).clamp_min(SMALLEST_AMAX)
        amax = torch.where(amax.isfinite(), amax, torch.nan)
        # By a tensor: on CUDA torch divides by a number as a multiplication by its inverse, which rounds otherwise.
        scales = round_up(amax / torch.full_like(amax, CODE_OF_AMAX[dtype]))
    codes = (wide * (1.0 / scales.float())[..., None]).nan_to_num(0.0).clamp(-largest, largest)
    if dtype == torch.uint8:
        return (codes.round() + 128).to(dtype), scales
    return codes.to(dtype), scales


def read_slots(cache: KvCache, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of `slots` [n], [n, kv_heads, head_dim]; codes are dequantised to `dtype`."""
    k, v = (as_bytes(each).index_select(0, slots) for each in (cache.k, cache.v))
    if cache.scales is None:
        return k, v
    scales = cache.scales.index_select(0, slots)
    k, v = (
        dequantise(codes.view(stored.dtype), scales[..., place]).to(dtype)
        for place, (codes, stored) in enumerate(((k, cache.k), (v, cache.v)))
    )
    return k, v


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 values of `codes` [..., head_dim] with bfloat16 `scales` [...]."""
    wide = codes.float()
    if codes.dtype == torch.uint8:
        wide -= 128
    return wide * scales[..., None]

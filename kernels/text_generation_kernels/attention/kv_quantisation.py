"""What a quantised KV cache holds: codes of 8 bits, and a scale for each slot and head, or one that was given.

    value = scale * code,   code = round(value / scale),   scale = round_up(largest absolute value / CODE_OF_AMAX)

The type of a cache tells its format: float8_e4m3fn, float8_e5m2, or uint8 for int8, where the number u stands for
u - 128. A biased code becomes a float16 by two cheap instructions, a signed one does not (benchmark/results).
Scales `[slots, kv_heads, 2]` bfloat16 have that of keys and that of values side by side: one load brings both. They are
a part of what attention reads, so they have 16 bits, with exponents as wide as those of float32. A measured scale is
rounded up, so that the largest value of a head does not saturate, and codes are made with the rounded one: it loses
nothing but that steps between codes are up to 2 ** -7 wider.
A scale depends on one head of one token alone: not on the batch, on where a prompt is cut, or on who computed it.
"""

import torch
from torch import Tensor

from ._kv_conversion import E4M3, E5M2, INT8

KV_CODES = {"fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int8": torch.uint8}
"""The type of a cache by the name of its format."""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.uint8: 127.0}
"""The largest value that a code stands for, by the type of a cache that holds codes."""
CODE_OF_AMAX = LARGEST | {torch.float8_e5m2: 1.75}
"""What the largest value of a head becomes where its scale is measured. That of float8_e5m2 leaves the upper half of
its exponents unused, of which it has far more than a head needs: scales of the others' size fit into float16.
"""
FORMATS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2, torch.uint8: INT8}
"""Numbers by which kernels know the formats; 0 is a cache without codes."""
SMALLEST_AMAX = 1e-6
"""A head whose values are all smaller is measured as if its largest were this: no scale is 0."""


def format_of(cache: Tensor) -> int:
    """The number of the cache's format, 0 where it holds values."""
    return FORMATS.get(cache.dtype, 0)


def check_codes(name: str, k_cache: Tensor, v_cache: Tensor, scales: Tensor | None) -> None:
    """Raises ValueError where caches of codes and `scales` are not as this file says, or one is without the other."""
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
    sizes = [size for cache in (k_cache, v_cache) for size in (cache.shape[2], *cache.stride()[:2])]
    if any(size % 4 for size in sizes):
        raise ValueError(f"{name}: head sizes and strides of codes must be multiples of 4, not {sizes}")


def as_bytes(cache: Tensor) -> Tensor:
    """A cache of codes as uint8; a cache of values as it is."""
    return cache.view(torch.uint8) if format_of(cache) else cache


def as_words(cache: Tensor) -> Tensor:
    """A cache of codes as int32 words of four; a cache of values as it is."""
    return cache.view(torch.int32) if format_of(cache) else cache


def as_pairs(scales: Tensor | None) -> Tensor | None:
    """Scales as int32, `[slots, kv_heads, 1]`: that of keys in the low half."""
    return None if scales is None else scales.view(torch.int32)


def round_up(scales: Tensor) -> Tensor:
    """bfloat16, none below the float32 `scales`, which are positive or NaN.

    A bfloat16 is the upper half of a float32: where the lower one is not 0, adding ones carries over. NaN stays as it
    is, because its bits may be all ones, of which a carry would make 0.
    """
    bits = scales.view(torch.int32) + torch.where(scales.isnan(), 0, 0xFFFF).int()
    return (bits & -0x10000).view(torch.float32).bfloat16()


def quantise(values: Tensor, dtype: torch.dtype, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes of `values` [..., head_dim], and their scales [...] bfloat16: measured, or `scales` as they are given.

    Values saturate. Where one of a head is not finite, its measured scale is NaN, so that the head reads as NaN.
    """
    wide, largest = values.float(), LARGEST[dtype]
    if scales is None:
        amax = wide.abs().amax(dim=-1).clamp_min(SMALLEST_AMAX)
        amax = torch.where(amax.isfinite(), amax, torch.nan)
        # By a tensor: torch divides by a number on a CUDA device as it multiplies by the inverse, rounded otherwise.
        scales = round_up(amax / torch.full_like(amax, CODE_OF_AMAX[dtype]))
    codes = (wide * (1.0 / scales.float())[..., None]).nan_to_num(0.0).clamp(-largest, largest)
    if dtype == torch.uint8:
        return (codes.round() + 128).to(dtype), scales
    return codes.to(dtype), scales


Caches = tuple[Tensor, Tensor, Tensor | None]
"""Of keys, of values, and the scales where both hold codes."""


def read_slots(caches: Caches, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of `slots` [n], [n, kv_heads, head_dim]; those that were codes are rounded to `dtype`."""
    k, v = (as_bytes(cache).index_select(0, slots) for cache in caches[:2])
    if (scales := caches[2]) is None:
        return k, v
    scales = scales.index_select(0, slots)
    k, v = (
        dequantise(codes.view(cache.dtype), scales[..., place]).to(dtype)
        for place, (codes, cache) in enumerate(zip((k, v), caches[:2], strict=True))
    )
    return k, v


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 values of `codes` [..., head_dim] with `scales` [...] of bfloat16."""
    wide = codes.float()
    if codes.dtype == torch.uint8:
        wide -= 128
    return wide * scales[..., None]

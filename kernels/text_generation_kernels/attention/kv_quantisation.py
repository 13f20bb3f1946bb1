"""KV-cache quantisation: 8-bit codes, with a measured or given scale for each slot and head, or 4-bit codes in groups.

    value = scale * code,   code = round(value / scale),   scale = round_up(largest absolute value / CODE_OF_AMAX)

The dtype of a cache names its format: float8_e4m3fn, float8_e5m2, or uint8 for int8, where the number u stands for
u - 128: two cheap instructions make a float16 of a biased code, which a signed one does not allow.
Layout: `scales` `[slots, kv_heads, 2]` bfloat16 hold those of keys and of values side by side, so that one load brings
both. Attention reads them with the codes, so they have 16 bits, with exponents as wide as those of float32.

With 4 bits (int4, dtype int8: bytes of two codes) a head has one or more groups of at most GROUP_SIZE elements:

    value = scale * (code - 8) + zero,   scale = round_up((largest - smallest) / 15),   zero = smallest + 8 * scale

Eight codes make an int32 word. A head of D elements has D / 8 words, and place j of word w, its bits from 4 * j on,
holds element w + j * D / 8: all that the words of a head have in one place belongs to one group, so that kernels apply
scales and zeros to results of GEMMs. `scales` `[slots, kv_heads, 2 * (groups of keys + groups of values)]` bfloat16
hold scale and zero of each group of keys, then of values.

A measured scale is rounded up, so that the largest value of a head does not saturate, and codes are made with the
rounded scale: steps between codes are at most 2 ** -7 wider. A scale depends on one head of one token alone, not on the
batch, on where a prompt is cut, or on which rank computed it. A zero is rounded to the nearest bfloat16.
"""

import torch
from torch import Tensor

from ._kv_conversion import E4M3, E5M2, INT4, INT8
from .kv_cache import KvCache

_INT4_PAIRS = torch.int8
KV_CODES = {
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.uint8,
    "int4": _INT4_PAIRS,
}
"""Dtype of a cache by the name of its format."""
GROUP_SIZE, MOST_GROUPS = 64, 8
"""Most elements of a group of 4-bit codes, and most groups of a head: its words have so many places."""
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.uint8: 127.0}
"""Largest value of a code, by the dtype of a cache that holds codes."""
CODE_OF_AMAX = LARGEST | {torch.float8_e5m2: 1.75}
"""Code of a head's largest value, where the scale is measured. float8_e5m2 has far more exponents than a head needs and
leaves the upper half unused, so that its scales are as large as those of the other formats and fit into float16.
"""
FORMATS = {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2, torch.uint8: INT8, _INT4_PAIRS: INT4}
"""Format numbers of the kernels; 0 is a cache of values."""
SMALLEST_AMAX = 1e-6
"""Least amax of a head, or width of a group, so that no scale is 0."""


def format_of(cache: Tensor) -> int:
    """Format number of a cache, 0 where it holds values."""
    return FORMATS.get(cache.dtype, 0)


def head_dim_of(cache: Tensor) -> int:
    """Elements of a key or value."""
    return cache.shape[2] * (2 if cache.dtype == _INT4_PAIRS else 1)


def codes_of_word(cache: Tensor) -> int:
    """Codes of an int32 word; 1 where a cache holds values."""
    return 8 if cache.dtype == _INT4_PAIRS else 4 if format_of(cache) else 1


def groups_of(head_dim: int) -> int:
    """Groups of 4-bit codes of a head: a power of two, as few as GROUP_SIZE and MOST_GROUPS allow."""
    return min(MOST_GROUPS, 1 << ((head_dim - 1) // GROUP_SIZE).bit_length())


def scales_of_head(codes: torch.dtype, head_dim: int) -> int:
    """bfloat16 numbers that each key or value has beside its codes."""
    return 2 * groups_of(head_dim) if codes == _INT4_PAIRS else 1


def bytes_of_head(codes: torch.dtype, head_dim: int) -> int:
    """Bytes that the codes of a key or value take."""
    return head_dim // 2 if codes == _INT4_PAIRS else head_dim


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
    numbers = sum(scales_of_head(each.dtype, head_dim_of(each)) for each in (k_cache, v_cache))
    if scales.shape != (slots, kv_heads, numbers) or scales.dtype != torch.bfloat16 or scales.stride(2) != 1:
        raise ValueError(
            f"{name}: scales must be bfloat16 [slots, kv_heads, {numbers}], not {scales.dtype} {scales.shape}"
        )
    sizes = [size for each in (k_cache, v_cache) for size in (each.shape[2], *each.stride()[:2])]
    if any(size % 4 for size in sizes):
        raise ValueError(f"{name}: bytes of heads and strides of codes must be multiples of 4, not {sizes}")
    if format_of(k_cache) == INT4 and any(stride % 2 for stride in scales.stride()[:2]):
        raise ValueError(f"{name}: strides of scales and zeros must be even, not {scales.stride()}")


def as_bytes(cache: Tensor) -> Tensor:
    """View of a cache of codes as uint8; a cache of values unchanged."""
    return cache.view(torch.uint8) if format_of(cache) else cache


def as_words(cache: Tensor) -> Tensor:
    """View of a cache of codes as int32 words of four, or of eight 4-bit ones; a cache of values unchanged."""
    return cache.view(torch.int32) if format_of(cache) else cache


def as_pairs(scales: Tensor | None) -> Tensor | None:
    """View of scales as int32 `[slots, kv_heads, 1]`: that of keys in the low half. Of 4-bit codes `[..., groups]`: the
    scale of a group in the low half, its zero in the high one.
    """
    return None if scales is None else scales.view(torch.int32)


def round_up(scales: Tensor) -> Tensor:
    """float32 `scales`, positive or NaN, rounded up to bfloat16.

    A bfloat16 is the upper half of a float32: where the lower half is not 0, adding ones to it carries. NaN is kept
    apart: its bits may be all ones, of which a carry would make 0.
    """
    bits = scales.view(torch.int32) + torch.where(scales.isnan(), 0, 0xFFFF).int()
    return (bits & -0x10000).view(torch.float32).bfloat16()


def quantise(values: Tensor, dtype: torch.dtype, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes of `values` [..., head_dim], and their scales [...] bfloat16: measured, or the given `scales`. Of 4 bits
    scales, which are measured, are [..., 2 * groups].

    Values saturate. A head, or group, with an element that is not finite gets the scale NaN, so that it reads as NaN.
    """
    if dtype == _INT4_PAIRS:
        return _quantise_groups(values)
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
    of_keys, of_values = split_scales(cache, cache.scales.index_select(0, slots))
    k, v = (
        dequantise(codes.view(stored.dtype), scales).to(dtype)
        for codes, stored, scales in ((k, cache.k, of_keys), (v, cache.v, of_values))
    )
    return k, v


def split_scales(cache: KvCache, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Views of some `scales` of a cache: those of keys and of values, as `quantise` returns them."""
    if cache.k.dtype != _INT4_PAIRS:
        return scales[..., 0], scales[..., 1]
    of_keys = scales_of_head(cache.k.dtype, head_dim_of(cache.k))
    return scales[..., :of_keys], scales[..., of_keys:]


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """float32 values of `codes` [..., head_dim], or [..., head_dim / 2] of 4 bits, with bfloat16 scales."""
    if codes.dtype == _INT4_PAIRS:
        return _dequantise_groups(codes, scales)
    wide = codes.float()
    if codes.dtype == torch.uint8:
        wide -= 128
    return wide * scales[..., None]


def _quantise_groups(values: Tensor) -> tuple[Tensor, Tensor]:
    """4-bit codes, two in a byte of [..., head_dim / 2], and scale and zero of each group, [..., 2 * groups]."""
    wide = values.float().unflatten(-1, (groups_of(values.shape[-1]), -1))
    smallest, largest = wide.aminmax(dim=-1)
    width = (largest - smallest).clamp_min(SMALLEST_AMAX)
    width = torch.where(width.isfinite(), width, torch.nan)
    scales = round_up(width / torch.full_like(width, 15.0))
    zeros = (smallest + 8.0 * scales.float()).bfloat16()
    steps = (wide - zeros.float()[..., None]) * (1.0 / scales.float())[..., None]
    codes = (steps.nan_to_num(0.0).clamp(-8.0, 7.0).round() + 8).to(torch.uint8)
    # A byte has two places of a word, a word four bytes: [..., 4, 2, words].
    codes = codes.flatten(-2).unflatten(-1, (4, 2, -1))
    pairs = codes[..., 0, :] | codes[..., 1, :] << 4
    packed = pairs.transpose(-1, -2).flatten(-2).contiguous().view(_INT4_PAIRS)
    return packed, torch.stack((scales, zeros), dim=-1).flatten(-2)


def _dequantise_groups(packed: Tensor, scales: Tensor) -> Tensor:
    pairs = packed.view(torch.uint8).unflatten(-1, (-1, 4)).transpose(-1, -2)
    codes = torch.stack((pairs & 15, pairs >> 4), dim=-2).flatten(-3).float()
    scale, zero = (each[..., None] for each in scales.float().unflatten(-1, (-1, 2)).unbind(-1))
    return ((codes.unflatten(-1, (scale.shape[-2], -1)) - 8) * scale + zero).flatten(-2)

"""Online softmax, score options and cache loads shared by the decode and prefill attention kernels.

Options are compile-time switches: a specialisation without them contains none of their code.
"""

# pyright: basic
from torch import Tensor

from ..runtime.constants import LOG2_E
from ..runtime.triton import tl, triton
from .attention_options import AttentionOptions
from .kv_cache import KvCache
from .kv_quantisation import check_codes, head_dim_of

_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def load_slots(table_row_ptr, positions, end, MASKED: tl.constexpr):
    """Slots of `positions`. Table entries from `end` on are stale; where `MASKED` they are not read."""
    if MASKED:
        slots = tl.load(table_row_ptr + positions, mask=positions < end, other=0)
    else:
        slots = tl.load(table_row_ptr + positions)
    return slots.to(tl.int64)


@triton.jit
def load_rows(
    head_ptr,  # [slots, HEAD_DIM], K or V of one head
    slots,  # [N]
    stride_slot,
    valid,  # [N]
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """[N, BLOCK_D], zero where not `valid`: a stale slot may hold NaN, and NaN times zero is NaN."""
    elements = tl.arange(0, BLOCK_D)
    pointers = head_ptr + slots[:, None] * stride_slot + elements[None, :]
    if MASKED:
        return tl.load(pointers, mask=valid[:, None] & (elements < HEAD_DIM)[None, :], other=0.0)
    if HEAD_DIM < BLOCK_D:
        return tl.load(pointers, mask=(elements < HEAD_DIM)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def load_per_head(values_ptr, heads, exists):
    """Sinks or slopes [M] of `heads`, times log2(e)."""
    return tl.load(values_ptr + heads, mask=exists, other=0.0).to(tl.float32) * _LOG2_E


@triton.jit
def apply_options(scores, scale_log2, distances, slopes, SOFTCAP: tl.constexpr):
    """Applies softcap and slopes. Returns the new scores, and the factor that makes them powers of two.

    `scores` = q k^T [M, N], or k q^T [N, M] with heads as columns; `distances`, of the same shape, are k - q; `slopes`
    from `load_per_head` [M], or [1, M] with heads as columns, or None. `scale_log2` (the softmax scale times log2(e))
    may differ between positions.
    """
    if SOFTCAP > 0.0:
        # tanh(y) = 1 - 2 / (exp(2 * y) + 1), which is right for infinite powers as well.
        scores = 1.0 - 2.0 / (tl.exp2(scores * (scale_log2 * (2.0 / SOFTCAP))) + 1.0)
        scale_log2 = SOFTCAP * _LOG2_E
    if slopes is not None:
        if len(slopes.shape) == 1:
            slopes = slopes[:, None]
        scores = scores * scale_log2 + slopes * distances.to(tl.float32)
        scale_log2 = 1.0
    return scores, scale_log2


@triton.jit
def finite(maxima):
    """Replaces -inf, the maximum while all keys are masked, by 0: exp2(-inf - 0) is 0, exp2(-inf + inf) is NaN."""
    return tl.where(maxima == float("-inf"), 0.0, maxima)


@triton.jit
def accumulate(scores, scale_log2, v, acc, row_max, row_sum, ALL_MASKED: tl.constexpr):
    """One step of the online softmax (Milakov and Gimelshein, 2018) over `scores` [M, N], -inf where masked.

    Exponentials are powers of two: `scale_log2` (positive) is the softmax scale times log2(e), and `row_max` has its
    units. Scaling follows the maximum, where it fuses with the subtraction into one FMA. `ALL_MASKED` says that all
    keys of a row may be masked so far; a step that masks all keys again changes no bit of the row.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale_log2)
    base = finite(new_max) if ALL_MASKED else new_max
    correction = tl.exp2(row_max - base)
    weights = tl.exp2(scores * scale_log2 - base[:, None])
    row_sum = row_sum * correction + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype), v, acc * correction[:, None], input_precision="tf32x3")
    return acc, new_max, row_sum


def check_layouts(
    name: str, q: Tensor, cache: KvCache, slot_table: Tensor, out: Tensor, options: AttentionOptions
) -> None:
    """Raises ValueError for what the kernels do not read."""
    tokens, heads, head_dim = q.shape
    slots, kv_heads, _ = cache.v.shape
    if (
        out.shape != (tokens, heads, head_dim_of(cache.v))
        or cache.k.shape[:2] != (slots, kv_heads)
        or head_dim_of(cache.k) != head_dim
        or heads % kv_heads
        or any(each is not None and each.shape != (heads,) for each in (options.sinks, options.slopes))
    ):
        tensors = (q, cache.k, cache.v, out, options.sinks, options.slopes)
        shapes = [tuple(tensor.shape) for tensor in tensors if tensor is not None]
        raise ValueError(f"{name}: shapes of q, k_cache, v_cache, out (and sinks, slopes) do not fit: {shapes}")
    if not q.stride(2) == cache.k.stride(2) == cache.v.stride(2) == out.stride(2) == slot_table.stride(1) == 1:
        raise ValueError(f"{name}: the last dimension of every tensor must have stride 1")
    check_codes(name, cache)

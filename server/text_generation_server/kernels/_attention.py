"""What both attention kernels share: which request a program works for, the online softmax step, layout checks."""

# pyright: basic
from torch import Tensor

from ._triton import tl, triton

LOG2_E = 1.4426950408889634
# Requests that a program has room for: so few sizes that all can be compiled before they are needed. One is apart
# because prefill then spills fewer registers: 420 TFLOP/s at 8,192 tokens instead of 391 on an H200.
_BATCH_SIZES = (1, 16, 256)


@triton.jit
def locate(counts, item):
    """Work items lie side by side, `counts[b]` of request b: returns the request of `item`, and which of its items.

    The request is `counts.shape[0]` for an item past the last one: grids come from capacities, so there are some.
    """
    requests = tl.arange(0, counts.shape[0])
    request = tl.sum((tl.cumsum(counts, axis=0) <= item).to(tl.int32), axis=0)
    return request, item - tl.sum(tl.where(requests < request, counts, 0), axis=0)


@triton.jit
def load_slots(table_row_ptr, positions, end, MASKED: tl.constexpr):
    """Slots of `positions`. Entries of the table from `end` on are stale; they are not read where `MASKED`."""
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
    """[N, BLOCK_D]. Zero where not `valid`: what lies in a stale slot may be NaN, and NaN times zero is NaN."""
    elements = tl.arange(0, BLOCK_D)
    pointers = head_ptr + slots[:, None] * stride_slot + elements[None, :]
    if MASKED:
        return tl.load(pointers, mask=valid[:, None] & (elements < HEAD_DIM)[None, :], other=0.0)
    if HEAD_DIM < BLOCK_D:
        return tl.load(pointers, mask=(elements < HEAD_DIM)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def accumulate(scores, scale_log2, v, acc, row_max, row_sum):
    """One step of the online softmax (Milakov and Gimelshein, 2018) over `scores` [M, N], -inf where masked.

    Powers of two instead of e: `scale_log2` (positive) is the scale times log2(e), and `row_max` is in its units. The
    product is left for after the maximum, where it is one instruction together with the subtraction.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale_log2)
    correction = tl.exp2(row_max - new_max)
    weights = tl.exp2(scores * scale_log2 - new_max[:, None])
    row_sum = row_sum * correction + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype), v, acc * correction[:, None], input_precision="tf32x3")
    return acc, new_max, row_sum


def check_layouts(name: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, slot_table: Tensor, out: Tensor) -> None:
    """Raises ValueError for what the kernels do not read."""
    _, heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    if out.shape != q.shape or k_cache.shape != v_cache.shape or k_cache.shape[2] != head_dim or heads % kv_heads:
        shapes = [tuple(tensor.shape) for tensor in (q, k_cache, v_cache, out)]
        raise ValueError(f"{name}: shapes of q, k_cache, v_cache, out do not fit: {shapes}")
    if not q.stride(2) == k_cache.stride(2) == v_cache.stride(2) == out.stride(2) == slot_table.stride(1) == 1:
        raise ValueError(f"{name}: the last dimension of every tensor must have stride 1")


def padded_head_dim(head_dim: int) -> int:
    """Columns of a tile: a power of two, at least what a matrix instruction takes."""
    return max(16, 1 << (head_dim - 1).bit_length())


def padded_batch(batch: int) -> int:
    """Requests that a program plans for: a power of two, at least `batch`."""
    larger: int = triton.next_power_of_2(batch)  # pyright: ignore[reportAssignmentType]
    return next((size for size in _BATCH_SIZES if batch <= size), larger)

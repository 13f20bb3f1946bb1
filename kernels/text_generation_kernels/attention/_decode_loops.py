"""Loops of decode attention over one chunk: of values, and of 8-bit codes."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import wait_for_previous
from ..runtime.triton import tl, triton
from ._kv_conversion import join_words, load_scales, log2_of_scales, to_float16, widen, widen_words
from ._online_softmax import accumulate, apply_options, finite, load_rows, load_slots


@triton.jit
def _load_queries(q_ptrs, exist, PDL: tl.constexpr):
    """Waits for the previous kernel, which writes the queries, and loads them; zeros where none `exist`.

    Called in the first step of the loop over tiles, the wait comes after the software pipeline has prefetched its first
    tiles; called before the loop, it comes before all of them.
    """
    wait_for_previous(PDL)
    return tl.load(q_ptrs, mask=exist, other=0.0)


@triton.jit
def sees(distances, WINDOW: tl.constexpr, WIDTH: tl.constexpr):
    """Whether queries see keys, by k - q. WINDOW is that of all tokens of a request together."""
    seen = distances <= 0
    if WINDOW:
        seen &= distances > WIDTH - 1 - WINDOW
    return seen


@triton.jit
def attend(
    q_ptrs,  # [BLOCK_G, BLOCK_D]
    exist,  # [BLOCK_G, BLOCK_D], whether there is such a query and element
    slopes,  # [BLOCK_G] or None
    table_row_ptr,
    k_head_ptr,
    v_head_ptr,
    begin,
    end,
    kv_lens,  # of the request, or [BLOCK_G] where WIDTH > 1
    stride_k_slot,
    stride_v_slot,
    scale_log2,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """Weighted sum of values [BLOCK_G, BLOCK_V], maximum and sum of weights [BLOCK_G] over `begin` to `end`."""
    q = tl.zeros([BLOCK_G, BLOCK_D], dtype=q_ptrs.dtype.element_ty) if EARLY else _load_queries(q_ptrs, exist, PDL)
    acc = tl.zeros([BLOCK_G, BLOCK_V], dtype=tl.float32)
    row_max = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_G], dtype=tl.float32)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < end
        slots = load_slots(table_row_ptr, positions, end, True)
        k = load_rows(k_head_ptr, slots, stride_k_slot, valid, True, HEAD_DIM, BLOCK_D)
        if EARLY and start == begin:
            q = _load_queries(q_ptrs, exist, PDL)
        scores = tl.dot(q, k.T, input_precision="tf32x3")
        if WIDTH == 1:
            distances = (positions - kv_lens + 1)[None, :]
            scores, units = apply_options(scores, scale_log2, distances, slopes, SOFTCAP)
            scores = tl.where(valid[None, :], scores, float("-inf"))
        else:
            distances = positions[None, :] - kv_lens[:, None] + 1
            scores, units = apply_options(scores, scale_log2, distances, slopes, SOFTCAP)
            scores = tl.where(sees(distances, WINDOW, WIDTH), scores, float("-inf"))
        v = load_rows(v_head_ptr, slots, stride_v_slot, valid, True, V_DIM, BLOCK_V)
        acc, row_max, row_sum = accumulate(scores, units, v, acc, row_max, row_sum, WIDTH > 1)
    return acc, row_max, row_sum


@triton.jit
def load_tile_slots(table_row_ptr, positions, end):
    """Slots of `positions`. Positions from `end` on get the slot of the last one, so that their loads need no mask."""
    return tl.load(table_row_ptr + tl.minimum(positions, end - 1)).to(tl.int64)


@triton.jit
def load_words(v_head_ptr, slots, stride_slot, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """int32 words of values [BLOCK, N]: row i holds word i of every position."""
    elements = tl.arange(0, BLOCK)[:, None]
    pointers = v_head_ptr + slots[None, :] * stride_slot + elements
    if SIZE < BLOCK:
        return tl.load(pointers, mask=elements < SIZE, other=0)
    return tl.load(pointers)


@triton.jit
def attend_codes(
    q_ptrs,  # [BLOCK_G, BLOCK_D]
    exist,  # [BLOCK_G, BLOCK_D], whether there is such a query and element
    slopes,  # [BLOCK_G] or None
    table_row_ptr,
    k_head_ptr,  # int32 words, as strides are in words
    v_head_ptr,
    scales_head_ptr,
    begin,
    end,
    kv_lens,  # of the request, or [BLOCK_G] where WIDTH > 1
    stride_k_slot,
    stride_v_slot,
    stride_scales_slot,
    scale_log2,
    FORMAT: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """`attend` over 8-bit codes, with heads as columns of its GEMMs: an MMA instruction takes 8 columns but 16 rows.

    Values are read as words of four codes, and each of the four places within the words has a GEMM of its own. Weights
    include the scales of values, and `maxima` are those of the scaled weights, so none is above 1 and float16 holds
    them whatever the scales are. `sums` leave the scales out, in the same units.
    """
    WORDS: tl.constexpr = BLOCK_V // 4
    k_codes_ptr = k_head_ptr.to(tl.pointer_type(tl.uint8))
    if slopes is not None:
        slopes = slopes[None, :]
    q = tl.zeros([BLOCK_D, BLOCK_G], dtype=tl.float16)
    acc0 = tl.zeros([WORDS, BLOCK_G], dtype=tl.float32)
    acc1 = tl.zeros([WORDS, BLOCK_G], dtype=tl.float32)
    acc2 = tl.zeros([WORDS, BLOCK_G], dtype=tl.float32)
    acc3 = tl.zeros([WORDS, BLOCK_G], dtype=tl.float32)
    maxima = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK_G], dtype=tl.float32)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < end
        slots = load_tile_slots(table_row_ptr, positions, end)
        k = load_rows(k_codes_ptr, slots, stride_k_slot * 4, valid, False, HEAD_DIM, BLOCK_D)
        k_scales, v_scales = load_scales(scales_head_ptr, slots, stride_scales_slot, valid, FORMAT)
        if start == begin:
            q = to_float16(_load_queries(q_ptrs.T, exist.T, PDL))
        scores = tl.dot(widen(k, FORMAT), q)
        if WIDTH == 1:
            distances = (positions - kv_lens + 1)[:, None]
            seen = valid[:, None]
        else:
            distances = positions[:, None] - kv_lens[None, :] + 1
            seen = sees(distances, WINDOW, WIDTH)
        scores, units = apply_options(scores, (k_scales * scale_log2)[:, None], distances, slopes, SOFTCAP)
        scores = tl.where(seen, scores * units, float("-inf"))
        v = load_words(v_head_ptr, slots, stride_v_slot, V_DIM // 4, WORDS)
        scaled = scores + log2_of_scales(v_scales)[:, None]
        new_maxima = tl.maximum(maxima, tl.max(scaled, axis=0))
        base = finite(new_maxima) if WIDTH > 1 else new_maxima
        weights = tl.exp2(scaled - base[None, :]).to(tl.float16)
        correction = tl.exp2(maxima - base)
        maxima = new_maxima
        sums = sums * correction + tl.sum(tl.exp2(scores - base[None, :]), axis=0)
        v0, v1, v2, v3 = widen_words(v, FORMAT)
        correction = correction[None, :]
        acc0 = tl.dot(v0, weights, acc0 * correction)
        acc1 = tl.dot(v1, weights, acc1 * correction)
        acc2 = tl.dot(v2, weights, acc2 * correction)
        acc3 = tl.dot(v3, weights, acc3 * correction)
    return join_words(acc0.T, acc1.T, acc2.T, acc3.T, BLOCK_G, WORDS), maxima, sums

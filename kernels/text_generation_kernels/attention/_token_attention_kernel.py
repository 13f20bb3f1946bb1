"""Kernel of `token_attention`: one thread block attends with one KV head's query group to one chunk of the context."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._new_token import load_angles, load_heads, load_norm, rotated_heads
from ._online_softmax import accumulate, apply_options, load_per_head, load_rows, load_slots
from ._split_kv import bounds, find_chunk


@triton.jit
def _load_tile(
    table_row_ptr,
    k_head_ptr,
    v_head_ptr,
    stride_k_slot,
    stride_v_slot,
    begin,
    end,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Positions [BLOCK_N] from `begin` on, and their keys and values [BLOCK_N, BLOCK_D], zero from `end` on."""
    positions = begin + tl.arange(0, BLOCK_N)
    slots = load_slots(table_row_ptr, positions, end, True)
    k = load_rows(k_head_ptr, slots, stride_k_slot, positions < end, True, HEAD_DIM, BLOCK_D)
    v = load_rows(v_head_ptr, slots, stride_v_slot, positions < end, True, HEAD_DIM, BLOCK_D)
    return positions, k, v


@triton.jit
def _held(values, PDL: tl.constexpr):
    """Keeps prefetched `values` in registers until here. The compiler stages operands of an MMA in shared memory right
    after their loads, and later loads, such as those of V after K, would wait for that.
    """
    if PDL:
        pack: tl.constexpr = 32 // values.dtype.primitive_bitwidth
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values], values.dtype, is_pure=False, pack=pack)
    else:
        return values


@triton.jit
def _attend_to_tile(
    q,
    positions,
    k,
    v,
    end,
    kv_len,
    slopes,
    scale_log2,
    acc,
    row_max,
    row_sum,
    SOFTCAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """One step of the online softmax. Without the new token, all keys of a thread block may be masked.

    Values stay in registers until keys have left shared memory; why: docs/lab/2026-11-single-token-decode.md.
    """
    scores = tl.dot(q, _held(k, PDL).T, input_precision="tf32x3")
    scores, units = apply_options(scores, scale_log2, (positions - kv_len + 1)[None, :], slopes, SOFTCAP)
    scores = tl.where((positions < end)[None, :], scores, float("-inf"))
    return accumulate(scores, units, _held(v, PDL), acc, row_max, row_sum, True)


@triton.jit
def _attend_to_new(
    q,  # [BLOCK_G, BLOCK_D]
    k,  # [1, BLOCK_D]
    v,  # [1, BLOCK_D]
    slopes,
    scale_log2,
    SOFTCAP: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """First step of the online softmax, over the new token alone."""
    scores = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1, keep_dims=True)
    scores, units = apply_options(scores, scale_log2, tl.zeros([1, 1], tl.int32), slopes, SOFTCAP)
    weights = tl.full([BLOCK_G], 1.0, tl.float32)
    return v.to(tl.float32) * weights[:, None], tl.sum(scores * units, axis=1), weights


@triton.jit(
    do_not_specialize=["batch", "target_items", "one_wave", "min_chunk"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr", "position_ptr", "slot_ptr"],
)
def token_attention_kernel(
    qkv_ptr,  # [kv_heads * (GROUP + 2), HEAD_DIM]: query heads, key heads, value heads
    bias_ptr,  # likewise or None
    q_norm_ptr,  # as of `rotated_heads`
    k_norm_ptr,  # likewise
    cos_sin_ptr,  # [positions, HEAD_DIM] float32
    position_ptr,  # [1] int64
    slot_ptr,  # [1] int64
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM]
    v_cache_ptr,  # [slots, kv_heads, HEAD_DIM]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [1]
    b_kv_len_ptr,  # [1]
    sinks_ptr,  # [heads] float32 or None
    slopes_ptr,  # [heads] float32 or None
    out_ptr,  # [heads, HEAD_DIM]
    partial_ptr,  # [items, heads, HEAD_DIM] float32, written where there are several chunks
    partial_log_sum_ptr,  # [items, heads] float32, likewise
    stride_cos_sin,
    stride_k_slot,
    stride_k_head,
    stride_v_slot,
    stride_v_head,
    stride_table_row,
    eps,
    scale_log2,  # scale times log2(e)
    batch,
    target_items,
    one_wave,
    min_chunk,
    GROUP: tl.constexpr,  # heads for each KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least HEAD_DIM and 16
    BLOCK_G: tl.constexpr,  # power of two, at least GROUP and 16
    BLOCK_B: tl.constexpr,  # 1
    BLOCK_N: tl.constexpr,
    NORM_OF_EACH_HEAD: tl.constexpr,
    NORM_AFTER_ROPE: tl.constexpr,
    DETERMINISTIC: tl.constexpr,  # False
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,  # 1
    SOFTCAP: tl.constexpr,
    EARLY: tl.constexpr,  # most thread blocks with which dependents are launched early; 0: any number
    PDL: tl.constexpr,
):
    """The first positions are older than the step, so they are prefetched before the wait. Dependents, whose weight
    prefetch would otherwise queue before these loads, are launched once all positions are prefetched, or, where more
    than EARLY thread blocks read positions, at the end.
    """
    kv_head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    item = tl.program_id(1)
    request, chunk, lengths, chunks, rows = find_chunk(
        b_row_ptr, b_kv_len_ptr, item, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW, WIDTH
    )
    members = tl.arange(0, BLOCK_G)
    heads = kv_head * GROUP + members
    exists = members < GROUP
    elements = tl.arange(0, BLOCK_D)
    stored = exists[:, None] & (elements < HEAD_DIM)[None, :]
    out_tile_ptr = out_ptr + heads[:, None] * HEAD_DIM + elements[None, :]
    if request >= batch:
        launch_dependents(PDL)
        wait_for_previous(PDL)
        # The first chunk of a padded row.
        tl.store(out_tile_ptr, 0.0, mask=stored & (item == 0))
        return
    row, kv_len, num_chunks, begin, end = bounds(request, chunk, lengths, chunks, rows, BLOCK_B, BLOCK_N, WINDOW)
    has_new = (end == kv_len) & (begin < end)
    end = tl.minimum(end, kv_len - 1)
    table_row_ptr = slot_table_ptr + row * stride_table_row
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head
    positions, k, v = _load_tile(
        table_row_ptr, k_head_ptr, v_head_ptr, stride_k_slot, stride_v_slot, begin, end, HEAD_DIM, BLOCK_D, BLOCK_N
    )
    one = kv_head + tl.arange(0, 1)
    cos, sin = load_angles(cos_sin_ptr + tl.load(position_ptr) * stride_cos_sin, elements, HEAD_DIM)
    q_weight, q_partner, k_weight, k_partner = None, None, None, None
    if q_norm_ptr is not None:
        q_weight, q_partner = load_norm(q_norm_ptr, heads, exists, elements, HEAD_DIM, NORM_OF_EACH_HEAD)
        k_weight, k_partner = load_norm(k_norm_ptr, one, one >= 0, elements, HEAD_DIM, NORM_OF_EACH_HEAD)
    slot = tl.load(slot_ptr)
    is_early = begin + BLOCK_N >= end
    if EARLY:
        is_early &= num_chunks * kv_heads <= EARLY
    if is_early:
        launch_dependents(PDL)
    wait_for_previous(PDL)

    slopes = None
    if slopes_ptr is not None:
        slopes = load_per_head(slopes_ptr, heads, exists)
    q = rotated_heads(
        qkv_ptr, bias_ptr, q_weight, q_partner, cos, sin, heads, exists, elements, eps, HEAD_DIM, NORM_AFTER_ROPE
    )
    acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_G], dtype=tl.float32)
    if has_new:
        keys_ptr = qkv_ptr + kv_heads * GROUP * HEAD_DIM
        keys_bias_ptr = bias_ptr
        if bias_ptr is not None:
            keys_bias_ptr = bias_ptr + kv_heads * GROUP * HEAD_DIM
        new_k = rotated_heads(
            keys_ptr, keys_bias_ptr, k_weight, k_partner, cos, sin, one, one >= 0, elements, eps,
            HEAD_DIM, NORM_AFTER_ROPE,
        )  # fmt: skip
        valid = elements < HEAD_DIM
        new_v = load_heads(keys_ptr, keys_bias_ptr, kv_heads + one, one >= 0, elements, valid, HEAD_DIM).to(q.dtype)
        inside = valid[None, :]
        tl.store(k_head_ptr + slot * stride_k_slot + elements[None, :], new_k, mask=inside)
        tl.store(v_head_ptr + slot * stride_v_slot + elements[None, :], new_v, mask=inside)
        acc, row_max, row_sum = _attend_to_new(q, new_k, new_v, slopes, scale_log2, SOFTCAP, BLOCK_G)
    acc, row_max, row_sum = _attend_to_tile(
        q, positions, k, v, end, kv_len, slopes, scale_log2, acc, row_max, row_sum, SOFTCAP, PDL
    )
    for start in range(begin + BLOCK_N, end, BLOCK_N):
        positions, k, v = _load_tile(
            table_row_ptr, k_head_ptr, v_head_ptr, stride_k_slot, stride_v_slot, start, end, HEAD_DIM, BLOCK_D, BLOCK_N
        )
        acc, row_max, row_sum = _attend_to_tile(
            q, positions, k, v, end, kv_len, slopes, scale_log2, acc, row_max, row_sum, SOFTCAP, PDL
        )
    launch_dependents(PDL)

    if sinks_ptr is not None:
        # Of several chunks none counts the sink: the merge does.
        sinks = load_per_head(sinks_ptr, heads, exists)
        row_sum += tl.where(num_chunks == 1, tl.exp2(sinks - row_max), 0.0)
    # A chunk that rounding left empty has sum 0 and yields zeros.
    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    if num_chunks == 1:
        tl.store(out_tile_ptr, acc.to(out_ptr.dtype.element_ty), mask=stored)
        return
    partial_rows = item * (kv_heads * GROUP) + heads
    tl.store(partial_ptr + partial_rows[:, None] * HEAD_DIM + elements[None, :], acc, mask=stored)
    tl.store(partial_log_sum_ptr + partial_rows, row_max + tl.log2(row_sum), mask=exists)

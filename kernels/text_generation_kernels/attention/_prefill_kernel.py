"""Prefill attention kernel for any card: one thread block attends with a tile of queries to one split of its keys."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.batches import find_tile
from ..runtime.launch import is_last, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._kv_conversion import INT4, load_scales, to_float16, widen
from ._kv_groups import code_elements, group_count, load_values
from ._online_softmax import accumulate, apply_options, load_per_head, load_rows, load_slots
from ._prefill_tiles import merge_partials, plan_splits, seen_by, store_partial

_INT4 = tl.constexpr(INT4)


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    slots,  # [BLOCK_N] of the keys from `begin` on
    q,  # [BLOCK_M, BLOCK_D]
    positions,  # [BLOCK_M] of the queries
    slopes,  # [BLOCK_M] or None
    table_row_ptr,
    k_head_ptr,
    v_head_ptr,
    scales_head_ptr,
    begin,
    end,
    seen_end,
    stride_k_slot,
    stride_v_slot,
    stride_scales_slot,
    scale_log2,
    FORMAT: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attends to keys from `begin` to `end`: unmasked, or, where `MASKED`, up to a query's position and in its window.

    Slots are loaded one step ahead, up to `seen_end`, so that no step waits for memory twice.
    """
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        next_slots = load_slots(table_row_ptr, keys + BLOCK_N, seen_end, True)
        if FORMAT == _INT4:
            k_pairs = scales_head_ptr + slots * stride_scales_slot
            k = load_values(k_head_ptr, k_pairs, slots, stride_k_slot, keys < end, MASKED, HEAD_DIM, BLOCK_D, BLOCK_N)
        else:
            k = load_rows(k_head_ptr, slots, stride_k_slot, keys < end, MASKED, HEAD_DIM, BLOCK_D)
            if FORMAT:
                k_scales, v_scales = load_scales(scales_head_ptr, slots, stride_scales_slot, keys < end, FORMAT)
                k = widen(k, FORMAT) * k_scales.to(tl.float16)[:, None]
        scores = tl.dot(q, k.T, input_precision="tf32x3")
        distances = keys[None, :] - positions[:, None]
        scores, units = apply_options(scores, scale_log2, distances, slopes, SOFTCAP)
        if MASKED:
            seen = keys[None, :] <= positions[:, None]
            if WINDOW:
                seen &= distances > -WINDOW
            scores = tl.where(seen, scores, float("-inf"))
        if FORMAT == _INT4:
            v_pairs = scales_head_ptr + slots * stride_scales_slot + group_count(HEAD_DIM)
            v = load_values(v_head_ptr, v_pairs, slots, stride_v_slot, keys < end, MASKED, V_DIM, BLOCK_V, BLOCK_N)
        else:
            v = load_rows(v_head_ptr, slots, stride_v_slot, keys < end, MASKED, V_DIM, BLOCK_V)
            if FORMAT:
                v = widen(v, FORMAT) * v_scales.to(tl.float16)[:, None]
        acc, row_max, row_sum = accumulate(scores, units, v, acc, row_max, row_sum, WINDOW > 0 and MASKED)
        slots = next_slots
    return acc, row_max, row_sum, slots


@triton.jit(
    do_not_specialize=["batch", "max_splits"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_q_start_ptr", "b_kv_len_ptr"],
)
def prefill_attention_kernel(
    q_ptr,  # [tokens, heads, HEAD_DIM]
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM], where FORMAT uint8, or int32 words of eight 4-bit codes
    v_cache_ptr,  # [slots, kv_heads, V_DIM], likewise
    scales_ptr,  # [slots, kv_heads] int32, both scales side by side, or scale and zero of each group, or None
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_q_start_ptr,  # [batch + 1]
    b_kv_len_ptr,  # [batch]
    sinks_ptr,  # [heads] float32 or None
    slopes_ptr,  # [heads] float32 or None
    out_ptr,  # [tokens, heads, V_DIM]
    partial_ptr,  # [tiles, kv_heads, max_splits, BLOCK_M, BLOCK_V] float32, where max_splits > 1
    partial_log_sum_ptr,  # [tiles, kv_heads, max_splits, BLOCK_M] float32, likewise
    arrived_ptr,  # [tiles, kv_heads] int32, zero before and after
    stride_q_token,
    stride_q_head,
    stride_k_slot: tl.constexpr,
    stride_k_head: tl.constexpr,
    stride_v_slot: tl.constexpr,
    stride_v_head: tl.constexpr,
    stride_scales_slot: tl.constexpr,
    stride_scales_head,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    max_splits,
    scale_log2,  # scale times log2(e)
    GROUP: tl.constexpr,  # heads for each KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least HEAD_DIM and 16
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,  # power of two, at least V_DIM and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    MIN_SPLIT: tl.constexpr,
    SPLIT: tl.constexpr,  # whether max_splits > 1
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,  # of `kv_quantisation`, 0 for values
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block attends with BLOCK_M query rows of one request and KV head to one split of their keys.

    Rows are heads within tokens, so all heads of a group share the loads. Of a tile's splits, the last to finish merges
    the partials of all.
    """
    launch_dependents(PDL)
    wait_for_previous(PDL)
    request, tile = find_tile(b_q_start_ptr, tl.program_id(1), batch, GROUP, BLOCK_M, BLOCK_B)
    if request >= batch:
        return
    q_start = tl.load(b_q_start_ptr + request)
    q_len = tl.load(b_q_start_ptr + request + 1) - q_start
    kv_len = tl.load(b_kv_len_ptr + request)
    if kv_len == 0:
        return
    # The last tile reads most, so it starts first, and short tiles fill the tail.
    first = (tl.cdiv(q_len * GROUP, BLOCK_M) - 1 - tile) * BLOCK_M
    prefix = kv_len - q_len
    seen_by_all, end = seen_by(first, prefix, kv_len, GROUP, BLOCK_M, BLOCK_N)
    begin, split_end, split, splits = 0, seen_by_all, 0, 1
    if WINDOW:
        # Whole blocks, so that a query's sum has the same steps in every tile: from the block of the first key that the
        # first query sees. From `full` on the last query sees all keys of a block too.
        begin = tl.maximum(prefix + first // GROUP + 1 - WINDOW, 0) // BLOCK_N * BLOCK_N
        full = tl.cdiv(tl.maximum(end - WINDOW, 0), BLOCK_N) * BLOCK_N
    if SPLIT:
        split_len, splits = plan_splits(begin, seen_by_all, max_splits, BLOCK_N, MIN_SPLIT)
        split = tl.program_id(2)
        if split >= splits:
            return
        begin += split * split_len
        split_end = tl.minimum(begin + split_len, seen_by_all)
        end = tl.where(split == splits - 1, end, split_end)

    kv_head = tl.program_id(0)
    rows = first + tl.arange(0, BLOCK_M)
    elements = tl.arange(0, BLOCK_D)
    exists = rows < q_len * GROUP
    tokens = (q_start + rows // GROUP).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    if FORMAT == _INT4:
        elements = code_elements(HEAD_DIM, BLOCK_D, BLOCK_D)
    q_tile_ptr = q_ptr + (tokens * stride_q_token + heads * stride_q_head)[:, None] + elements[None, :]
    q = tl.load(q_tile_ptr, mask=exists[:, None] & (elements < HEAD_DIM)[None, :], other=0.0)
    slopes, sinks = None, None
    if slopes_ptr is not None:
        slopes = load_per_head(slopes_ptr, heads, exists)
    if sinks_ptr is not None:
        sinks = load_per_head(sinks_ptr, heads, exists)

    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + request).to(tl.int64) * stride_table_row
    if FORMAT:
        q = to_float16(q)
        scales_head_ptr = scales_ptr + kv_head * stride_scales_head
    else:
        scales_head_ptr = None
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head
    positions = prefix + rows // GROUP

    acc = tl.zeros([BLOCK_M, BLOCK_V], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    slots = load_slots(table_row_ptr, begin + tl.arange(0, BLOCK_N), end, True)
    if WINDOW:
        full = tl.minimum(tl.maximum(full, begin), split_end)
        acc, row_max, row_sum, slots = _attend(
            acc, row_max, row_sum, slots, q, positions, slopes, table_row_ptr, k_head_ptr, v_head_ptr,
            scales_head_ptr, begin, full, end, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
            FORMAT, True, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_N,
        )  # fmt: skip
        begin = full
    acc, row_max, row_sum, slots = _attend(
        acc, row_max, row_sum, slots, q, positions, slopes, table_row_ptr, k_head_ptr, v_head_ptr,
        scales_head_ptr, begin, split_end, end, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
        FORMAT, False, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_N,
    )  # fmt: skip
    acc, row_max, row_sum, slots = _attend(
        acc, row_max, row_sum, slots, q, positions, slopes, table_row_ptr, k_head_ptr, v_head_ptr,
        scales_head_ptr, split_end, end, end, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
        FORMAT, True, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_N,
    )  # fmt: skip
    elements = tl.arange(0, BLOCK_V)
    if sinks is not None:
        # Of several splits none counts the sink: the merge does.
        row_sum += tl.where(splits == 1, tl.exp2(sinks - row_max), 0.0)
    if WINDOW:
        # A split may lie outside a query's window and has sum 0 for it.
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    acc = acc / row_sum[:, None]
    if SPLIT and splits > 1:
        tile_index = tl.program_id(1) * tl.num_programs(0) + kv_head
        first_row = tile_index.to(tl.int64) * max_splits * BLOCK_M
        partial_tile_ptr, log_sum_tile_ptr = partial_ptr + first_row * BLOCK_V, partial_log_sum_ptr + first_row
        count = q_len * GROUP - first
        store_partial(
            partial_tile_ptr, log_sum_tile_ptr, split, acc, row_max + tl.log2(row_sum), count, BLOCK_V, BLOCK_M
        )
        if not is_last(arrived_ptr + tile_index, splits):
            return
        acc = merge_partials(partial_tile_ptr, log_sum_tile_ptr, sinks, splits, count, BLOCK_V, BLOCK_M, WINDOW > 0)
    if FORMAT == _INT4:
        elements = code_elements(V_DIM, BLOCK_V, BLOCK_V)
    stored = exists[:, None] & (elements < V_DIM)[None, :]
    out_tile_ptr = out_ptr + (tokens * stride_out_token + heads * stride_out_head)[:, None] + elements[None, :]
    tl.store(out_tile_ptr, acc.to(out_ptr.dtype.element_ty), mask=stored)

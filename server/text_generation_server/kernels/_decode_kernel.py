"""The kernel of decode attention: one program attends with the heads of a group to one chunk of one request."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ._attention import accumulate, apply_options, load_per_head, load_rows, load_slots, scaled_weights
from ._chunks import bounds, fill_padding, find_chunk, merge_chunks
from ._kv_codes import join_words, load_scales, split_words, to_float16, widen_words
from ._launch import is_last, let_next_start, wait_for_previous
from ._triton import tl, triton


@triton.jit
def _attend(
    q,  # [BLOCK_G, BLOCK_D]
    slopes,  # [BLOCK_G] or None
    table_row_ptr,
    k_head_ptr,
    v_head_ptr,
    begin,
    end,
    kv_len,
    stride_k_slot,
    stride_v_slot,
    scale_log2,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum of values [BLOCK_G, BLOCK_V], maximum and sum of weights [BLOCK_G] over positions `begin` to `end`."""
    acc = tl.zeros([BLOCK_G, BLOCK_V], dtype=tl.float32)
    row_max = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_G], dtype=tl.float32)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < end
        slots = load_slots(table_row_ptr, positions, end, True)
        k = load_rows(k_head_ptr, slots, stride_k_slot, valid, True, HEAD_DIM, BLOCK_D)
        scores = tl.dot(q, k.T, input_precision="tf32x3")
        scores, units = apply_options(scores, scale_log2, (positions - kv_len + 1)[None, :], slopes, SOFTCAP)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        v = load_rows(v_head_ptr, slots, stride_v_slot, valid, True, V_DIM, BLOCK_V)
        acc, row_max, row_sum = accumulate(scores, units, v, acc, row_max, row_sum, False)
    return acc, row_max, row_sum


@triton.jit
def _attend_codes(
    q,  # [BLOCK_G, BLOCK_D]
    slopes,  # [BLOCK_G] or None
    table_row_ptr,
    k_head_ptr,  # int32 words, as strides are in words
    v_head_ptr,
    scales_head_ptr,
    begin,
    end,
    kv_len,
    stride_k_slot,
    stride_v_slot,
    stride_scales_slot,
    scale_log2,
    FORMAT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`_attend` over codes, read as words of four: each of the four places has products of its own."""
    WORDS: tl.constexpr = BLOCK_D // 4
    V_WORDS: tl.constexpr = BLOCK_V // 4
    q0, q1, q2, q3 = split_words(to_float16(q), BLOCK_G, WORDS)
    acc0 = tl.zeros([BLOCK_G, V_WORDS], dtype=tl.float32)
    acc1 = tl.zeros([BLOCK_G, V_WORDS], dtype=tl.float32)
    acc2 = tl.zeros([BLOCK_G, V_WORDS], dtype=tl.float32)
    acc3 = tl.zeros([BLOCK_G, V_WORDS], dtype=tl.float32)
    row_max = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_G], dtype=tl.float32)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < end
        slots = load_slots(table_row_ptr, positions, end, True)
        k = load_rows(k_head_ptr, slots, stride_k_slot, valid, True, HEAD_DIM // 4, WORDS)
        k_scales, v_scales = load_scales(scales_head_ptr, slots, stride_scales_slot, valid, FORMAT)
        k0, k1, k2, k3 = widen_words(k, FORMAT)
        scores = tl.dot(q0, k0.T)
        scores = tl.dot(q1, k1.T, scores)
        scores = tl.dot(q2, k2.T, scores)
        scores = tl.dot(q3, k3.T, scores) * k_scales[None, :]
        scores, units = apply_options(scores, scale_log2, (positions - kv_len + 1)[None, :], slopes, SOFTCAP)
        scores = tl.where(valid[None, :], scores, float("-inf"))
        v = load_rows(v_head_ptr, slots, stride_v_slot, valid, True, V_DIM // 4, V_WORDS)
        weights, correction, row_max, row_sum = scaled_weights(scores, units, v_scales, row_max, row_sum)
        v0, v1, v2, v3 = widen_words(v, FORMAT)
        weights = weights.to(tl.float16)
        correction = correction[:, None]
        acc0 = tl.dot(weights, v0, acc0 * correction)
        acc1 = tl.dot(weights, v1, acc1 * correction)
        acc2 = tl.dot(weights, v2, acc2 * correction)
        acc3 = tl.dot(weights, v3, acc3 * correction)
    return join_words(acc0, acc1, acc2, acc3, BLOCK_G, V_WORDS), row_max, row_sum


@triton.jit(
    do_not_specialize=["batch", "target_items", "one_wave", "min_chunk"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr"],
)
def decode_attention_kernel(
    q_ptr,  # [batch, heads, HEAD_DIM]
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM], or, where FORMAT, int32 words of four codes
    v_cache_ptr,  # [slots, kv_heads, V_DIM], likewise
    scales_ptr,  # [slots, kv_heads] int64, both scales side by side, or None
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_kv_len_ptr,  # [batch]
    sinks_ptr,  # [heads] float32 or None
    slopes_ptr,  # [heads] float32 or None
    out_ptr,  # [batch, heads, V_DIM]
    partial_ptr,  # [items, heads, V_DIM] float32, written for requests of several chunks
    partial_log_sum_ptr,  # [items, heads] float32, likewise
    arrived_ptr,  # [batch, kv_heads] int32, zero before and after
    stride_q_request,
    stride_q_head,
    stride_k_slot,
    stride_k_head,
    stride_v_slot,
    stride_v_head,
    stride_scales_slot,
    stride_scales_head,
    stride_table_row,
    stride_out_request,
    stride_out_head,
    batch,
    target_items,
    one_wave,
    min_chunk,
    scale_log2,  # scale times log2(e)
    GROUP: tl.constexpr,  # heads for each KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least HEAD_DIM and 16
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,  # power of two, at least V_DIM and 16
    BLOCK_G: tl.constexpr,  # power of two, at least GROUP and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    BLOCK_H: tl.constexpr,  # power of two, at least GROUP
    BLOCK_C: tl.constexpr,  # chunks that are merged at a time
    LAST_MERGES: tl.constexpr,  # or `merge_kernel` does
    BLOCK_N: tl.constexpr,
    DETERMINISTIC: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,  # of `kv_codes`
    PDL: tl.constexpr,
):
    """One program attends with all heads of one KV head over one chunk of one request.

    Of a request's programs for a KV head, the last to finish adds up what all of them have found.
    """
    let_next_start(PDL)
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    in_group = tl.arange(0, BLOCK_G)
    heads = kv_head * GROUP + in_group
    exists = in_group < GROUP
    if fill_padding(
        out_ptr, b_kv_len_ptr, item, tl.num_programs(1), batch, heads, exists, stride_out_request, stride_out_head,
        V_DIM, BLOCK_V, BLOCK_B, PDL,
    ):  # fmt: skip
        return
    request, chunk, lengths, chunks, rows = find_chunk(
        b_row_ptr, b_kv_len_ptr, item, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW
    )
    wait_for_previous(PDL)
    if request >= batch:
        return
    row, kv_len, num_chunks, begin, end = bounds(request, chunk, lengths, chunks, rows, BLOCK_B, BLOCK_N, WINDOW)

    elements = tl.arange(0, BLOCK_D)
    q_tile_ptr = q_ptr + request.to(tl.int64) * stride_q_request + heads[:, None] * stride_q_head + elements[None, :]
    q = tl.load(q_tile_ptr, mask=exists[:, None] & (elements < HEAD_DIM)[None, :], other=0.0)
    slopes = None
    if slopes_ptr is not None:
        slopes = load_per_head(slopes_ptr, heads, exists)
    table_row_ptr = slot_table_ptr + row * stride_table_row
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head

    if FORMAT:
        acc, row_max, row_sum = _attend_codes(
            q, slopes, table_row_ptr, k_head_ptr, v_head_ptr, scales_ptr + kv_head * stride_scales_head, begin, end,
            kv_len, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
            FORMAT, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_G, BLOCK_N,
        )  # fmt: skip
    else:
        acc, row_max, row_sum = _attend(
            q, slopes, table_row_ptr, k_head_ptr, v_head_ptr, begin, end, kv_len, stride_k_slot, stride_v_slot,
            scale_log2, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_G, BLOCK_N,
        )  # fmt: skip

    elements = tl.arange(0, BLOCK_V)
    stored = exists[:, None] & (elements < V_DIM)[None, :]
    if sinks_ptr is not None:
        # Of several chunks none counts the sink: their merge does.
        sinks = load_per_head(sinks_ptr, heads, exists)
        row_sum += tl.where(num_chunks == 1, tl.exp2(sinks - row_max), 0.0)
    # An empty context (a padded row, or a chunk that rounding left empty) has sum 0 and gives zeros.
    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    out_request_ptr = out_ptr + request.to(tl.int64) * stride_out_request
    if num_chunks == 1:
        out_tile_ptr = out_request_ptr + heads[:, None] * stride_out_head + elements[None, :]
        tl.store(out_tile_ptr, acc.to(out_ptr.dtype.element_ty), mask=stored)
        return
    num_heads = tl.num_programs(0) * GROUP
    partial_rows = item.to(tl.int64) * num_heads + heads
    tl.store(partial_ptr + partial_rows[:, None] * V_DIM + elements[None, :], acc, mask=stored)
    tl.store(partial_log_sum_ptr + partial_rows, row_max + tl.log2(row_sum), mask=exists)
    if LAST_MERGES and is_last(arrived_ptr + request * tl.num_programs(0) + kv_head, num_chunks):
        members = tl.arange(0, BLOCK_H)
        member_heads = kv_head * GROUP + members
        out = merge_chunks(
            partial_ptr, partial_log_sum_ptr, sinks_ptr, item - chunk, num_chunks, num_heads, member_heads,
            members < GROUP, V_DIM, BLOCK_V, BLOCK_C, BLOCK_H,
        )  # fmt: skip
        merged_tile_ptr = out_request_ptr + member_heads[:, None] * stride_out_head + elements[None, :]
        is_merged = (members < GROUP)[:, None] & (elements < V_DIM)[None, :]
        tl.store(merged_tile_ptr, out.to(out_ptr.dtype.element_ty), mask=is_merged)

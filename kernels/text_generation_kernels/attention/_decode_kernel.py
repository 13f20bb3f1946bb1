"""Split-KV decode attention kernel: one thread block attends with one KV head's query group to one chunk.

Rows of its tiles are the heads of the group, of one token after the other where requests have several (WIDTH): keys and
values are read once for all of them, and each row sees those that its token attends to.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import is_last, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._chunking import merge_chunks
from ._decode_int4 import attend_int4
from ._decode_loops import attend, attend_codes
from ._kv_conversion import INT4
from ._kv_groups import code_elements
from ._online_softmax import load_per_head
from ._split_kv import bounds, fill_padding, find_chunk, row_offsets

_INT4 = tl.constexpr(INT4)


@triton.jit
def _members(
    tile,
    kv_head,
    rows,  # [M], within the tile
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """Head and token [M] of each of `rows`, and whether there is such a row."""
    if WIDTH == 1:
        return kv_head * GROUP + rows, rows, rows < GROUP
    rows += tile * BLOCK_G
    return kv_head * GROUP + rows % GROUP, rows // GROUP, rows < GROUP * WIDTH


@triton.jit(
    do_not_specialize=["batch", "target_items", "one_wave", "min_chunk", "new_tokens"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr"],
)
def decode_attention_kernel(
    q_ptr,  # [batch * WIDTH, heads, HEAD_DIM]
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM], or, where FORMAT, int32 words of four codes, or of eight 4-bit ones
    v_cache_ptr,  # [slots, kv_heads, V_DIM], likewise
    scales_ptr,  # [slots, kv_heads] int32, both scales side by side, or scale and zero of each group, or None
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch * WIDTH]
    b_kv_len_ptr,  # [batch * WIDTH]
    sinks_ptr,  # [heads] float32 or None
    slopes_ptr,  # [heads] float32 or None
    out_ptr,  # [batch * WIDTH, heads, V_DIM]
    partial_ptr,  # [items, WIDTH * heads, V_DIM] float32, written for requests of several chunks
    partial_log_sum_ptr,  # [items, WIDTH * heads] float32, likewise
    arrived_ptr,  # [batch, kv_heads, tiles] int32, zero before and after
    stride_q_token,
    stride_q_head,
    stride_k_slot,
    stride_k_head,
    stride_v_slot,
    stride_v_head,
    stride_scales_slot,
    stride_scales_head,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    target_items,
    one_wave,
    min_chunk,
    new_tokens,
    scale_log2,  # scale times log2(e)
    GROUP: tl.constexpr,  # heads for each KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least HEAD_DIM and 16, of 4-bit codes at least 128
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,  # power of two, at least V_DIM and 16, likewise
    BLOCK_G: tl.constexpr,  # rows of a tile, a power of two, at least 16, or 8 where FORMAT
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    BLOCK_H: tl.constexpr,  # power of two, at least the rows of a tile that exist
    BLOCK_C: tl.constexpr,  # chunks that are merged at a time
    LAST_MERGES: tl.constexpr,  # or `merge_kernel` does
    BLOCK_N: tl.constexpr,
    DETERMINISTIC: tl.constexpr,
    WINDOW: tl.constexpr,  # positions that the tokens of a request see together, or 0
    WIDTH: tl.constexpr,  # tokens of a request
    SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,  # of `kv_quantisation`, 0 for values
    EARLY: tl.constexpr,  # whether the first tiles are prefetched before the wait
    AHEAD: tl.constexpr,  # tiles that may be prefetched before the first one is used
    PDL: tl.constexpr,
):
    """One thread block attends with a tile of rows, as a rule all query heads of one KV head, over one chunk of one
    request. Tiles of the same chunk are neighbours in the grid, so that all but one find it in L2.

    Of a request's thread blocks for a tile, the last to finish merges the partials of all.
    Where EARLY, the first tiles are prefetched while the previous kernel, which writes queries and the newest
    `new_tokens` positions alone, still runs. A chunk with one of those among its first tiles waits first, so that no
    prefetched tile contains it.
    """
    launch_dependents(PDL)
    TILES: tl.constexpr = (GROUP * WIDTH + BLOCK_G - 1) // BLOCK_G
    kv_head = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    item = tl.program_id(1)
    heads, tokens, exists = _members(tile, kv_head, tl.arange(0, BLOCK_G), GROUP, WIDTH, BLOCK_G)
    if fill_padding(
        out_ptr, b_kv_len_ptr, item, tl.num_programs(1), batch, heads, tokens, exists, stride_out_token,
        stride_out_head, V_DIM, BLOCK_V, BLOCK_B, WIDTH, PDL,
    ):  # fmt: skip
        return
    request, chunk, lengths, chunks, rows = find_chunk(
        b_row_ptr, b_kv_len_ptr, item, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW, WIDTH
    )
    if request >= batch:
        wait_for_previous(PDL)
        return
    row, kv_len, num_chunks, begin, end = bounds(request, chunk, lengths, chunks, rows, BLOCK_B, BLOCK_N, WINDOW)
    oldest_new = kv_len - new_tokens
    kv_lens = kv_len
    if WIDTH > 1:
        kv_lens = tl.load(b_kv_len_ptr + request * WIDTH + tokens, mask=exists, other=0)
        # Tokens may be missing, and slots behind the last one are stale.
        end = tl.minimum(end, tl.max(kv_lens, axis=0))
    if not EARLY or (begin >= end) | ((end > oldest_new) & (begin + AHEAD * BLOCK_N > oldest_new)):
        wait_for_previous(PDL)

    slopes = None
    if slopes_ptr is not None:
        slopes = load_per_head(slopes_ptr, heads, exists)
    q_request_ptr = q_ptr + (request * WIDTH).to(tl.int64) * stride_q_token
    table_row_ptr = slot_table_ptr + row * stride_table_row
    k_head_ptr = k_cache_ptr + kv_head * stride_k_head
    v_head_ptr = v_cache_ptr + kv_head * stride_v_head
    elements = tl.arange(0, BLOCK_D)[None, :]
    offsets = row_offsets(heads[:, None], tokens[:, None], stride_q_token, stride_q_head, WIDTH)
    q_ptrs = q_request_ptr + offsets + elements
    exist = exists[:, None] & (elements < HEAD_DIM)
    if FORMAT == _INT4:
        acc, row_max, row_sum = attend_int4(
            q_request_ptr + row_offsets(heads, tokens, stride_q_token, stride_q_head, WIDTH), exists, slopes,
            table_row_ptr, k_head_ptr, v_head_ptr, scales_ptr + kv_head * stride_scales_head, begin, end, kv_lens,
            stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
            WINDOW, WIDTH, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_G, BLOCK_N, PDL,
        )  # fmt: skip
    elif FORMAT:
        acc, row_max, row_sum = attend_codes(
            q_ptrs, exist, slopes, table_row_ptr, k_head_ptr, v_head_ptr, scales_ptr + kv_head * stride_scales_head,
            begin, end, kv_lens, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
            FORMAT, WINDOW, WIDTH, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_G, BLOCK_N, PDL,
        )  # fmt: skip
    else:
        acc, row_max, row_sum = attend(
            q_ptrs, exist, slopes, table_row_ptr, k_head_ptr, v_head_ptr, begin, end, kv_lens, stride_k_slot,
            stride_v_slot, scale_log2, WINDOW, WIDTH, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_G, BLOCK_N,
            EARLY, PDL,
        )  # fmt: skip

    elements = tl.arange(0, BLOCK_V)
    stored = exists[:, None] & (elements < V_DIM)[None, :]
    places = elements
    if FORMAT == _INT4:
        places = code_elements(V_DIM, BLOCK_V, BLOCK_V)
        stored = exists[:, None] & (places < V_DIM)[None, :]
    if sinks_ptr is not None:
        # Of several chunks none counts the sink: the merge does.
        sinks = load_per_head(sinks_ptr, heads, exists)
        row_sum += tl.where(num_chunks == 1, tl.exp2(sinks - row_max), 0.0)
    # An empty context (a padded row, or a chunk that rounding left empty) has sum 0 and yields zeros.
    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    out_request_ptr = out_ptr + (request * WIDTH).to(tl.int64) * stride_out_token
    if num_chunks == 1:
        offsets = row_offsets(heads[:, None], tokens[:, None], stride_out_token, stride_out_head, WIDTH)
        out_tile_ptr = out_request_ptr + offsets + places[None, :]
        tl.store(out_tile_ptr, acc.to(out_ptr.dtype.element_ty), mask=stored)
        return
    num_heads = tl.num_programs(0) // TILES * GROUP
    partial_rows = item.to(tl.int64) * (num_heads * WIDTH) + row_offsets(heads, tokens, num_heads, 1, WIDTH)
    tl.store(partial_ptr + partial_rows[:, None] * V_DIM + places[None, :], acc, mask=stored)
    tl.store(partial_log_sum_ptr + partial_rows, row_max + tl.log2(row_sum), mask=exists)
    if LAST_MERGES and is_last(arrived_ptr + request * tl.num_programs(0) + tl.program_id(0), num_chunks):
        m_heads, m_tokens, in_tile = _members(tile, kv_head, tl.arange(0, BLOCK_H), GROUP, WIDTH, BLOCK_G)
        merged = in_tile
        if WIDTH > 1:
            merged &= tl.load(b_kv_len_ptr + request * WIDTH + m_tokens, mask=in_tile, other=0) > 0
        out = merge_chunks(
            partial_ptr, partial_log_sum_ptr, sinks_ptr, item - chunk, num_chunks, num_heads * WIDTH,
            row_offsets(m_heads, m_tokens, num_heads, 1, WIDTH), m_heads, merged, V_DIM, BLOCK_V, BLOCK_C, BLOCK_H,
            WIDTH,
        )  # fmt: skip
        m_offsets = row_offsets(m_heads[:, None], m_tokens[:, None], stride_out_token, stride_out_head, WIDTH)
        merged_tile_ptr = out_request_ptr + m_offsets + elements[None, :]
        is_merged = in_tile[:, None] & (elements < V_DIM)[None, :]
        tl.store(merged_tile_ptr, out.to(out_ptr.dtype.element_ty), mask=is_merged)

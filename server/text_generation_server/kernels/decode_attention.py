"""Attention of one new token for each request over the whole context of that request.

    out[b] = sum over c < b_kv_len[b] of softmax(scale * q[b] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads). A request with `b_kv_len` 0 (a padded row) gets zeros.
`options` (`AttentionOptions`) are window, softcap, sinks and slopes. With a window only what is seen is read and shared
out among programs; a sink is counted once, by whoever has the whole sum.

Layouts: `q` `[batch, heads, head_dim]`, `out` `[batch, heads, v_head_dim]`, where `v_head_dim` is `head_dim` but for
caches of V with heads of another size; position c of request b lies in slot `slot_table[b_row[b], c]`. `slot_table`
`[rows, positions]` int32, `b_row` `[batch]` int64, `b_kv_len` `[batch]` int32. Caches `[slots, kv_heads, head_dim or
v_head_dim]`, already holding K and V of the new tokens. Entries of the table from `b_kv_len[b]` on may be stale and are
never followed: what another request left there must not reach this one, not even times zero.
Caches may hold codes of 8 bits with `scales` (`kv_codes.py`). They are read as words of four codes, and each place
within the words has products of its own, so that codes reach the matrix units from registers; scales are applied to
scores and to weights. Queries and weights are float16 then.
`deterministic`: the result of a request does not depend, to the bit, on which others are in the batch.

Called once a layer in a decode step.
Bytes floor: sum(b_kv_len) * kv_heads * head_dim * 2 * element size (each K and V once).
On an H200 with 8 KV heads, groups of 4 and head size 128 in bfloat16: 98 % of copy bandwidth at 64 x 2,048, 100 % at
256 x 1,024, 101 % at 16 x 32,768, 94 % at 64 lengths from 16 to 32,768; 49 % at one context of 8,192, 8 % at one of 512
(6 us, bound by latency). See benchmark/results/decode_attention.json. Within a layer of the 8B, starting before the
kernel ahead has finished saves 1.2 us at one context of 512 and at 64 of 2,048, and costs 2.5 us at one of 8,192.

The last program of a request adds up its chunks: 249 us instead of 263 with a kernel after this one at 256 x 1,024, 15
instead of 17 at 8 x 1,024, 290 instead of 295 at 64 lengths from 16 to 32,768. One request alone keeps the kernel
after: 16 us instead of 20 at 8,192, because one program is slow to read 66 chunks.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ._attention import (
    LOG2_E,
    accumulate,
    apply_options,
    check_layouts,
    load_per_head,
    load_rows,
    load_slots,
    locate,
    padded_batch,
    padded_head_dim,
    scaled_weights,
)
from ._attention_torch import attend
from ._chunks import in_window, merge_chunks, merge_kernel, plan
from ._config import nearest
from ._device import has_fp8_products, num_processors, shared_kib
from ._kv_codes import E4M3, E4M3_BY_HARDWARE, join_words, load_scales, split_words, to_float16, widen_words
from ._launch import Launcher, arrivals, is_last, let_next_start, wait_for_previous
from ._register import register
from ._triton import tl, triton
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_codes import Caches, as_pairs, as_words, format_of, read_slots

# Up to this many cache elements for the longest request, one padded call for the batch beats a call for each request:
# measured on CPU, a call costs about as much as copying 20,000 elements.
_PADDED_LIMIT = 16_384

# A chunk of K and V is at least this many positions: the first number for a batch so small that most processors would
# stay idle. Measured on an H200 with 8 KV heads: a layer at one context of 512 takes 122.3 us with 64 and 123.8 with
# 128, at eight of 1,024 137.2 and 135.1; 256 is worse for both.
_MIN_CHUNKS = (64, 128)
_SMALL_BATCH = 2

# Up to this many requests are cut into as many chunks as run at once; more of them into more chunks, which even out
# lengths that differ. On an H200: three contexts of 16,384 take 56 us with one wave and 64 with more chunks, sixteen
# from 16 to 32,768 take 106 and 96.
_FEW_REQUESTS = 4

# Deterministic chunks follow from the length alone: of this many positions, longer only where a context would have
# more than so many of them, so that the memory of partial results stays small.
_DETERMINISTIC_CHUNK = 256
_DETERMINISTIC_CHUNKS = 32

# Results that a merge reads at a time, of one chunk and head each: so many that few loads wait for each other.
_MERGED_ROWS = 32


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
    lengths, chunks = plan(b_kv_len_ptr, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW)
    rows = tl.load(b_row_ptr + tl.arange(0, BLOCK_B), mask=tl.arange(0, BLOCK_B) < batch, other=0)
    request, chunk = locate(chunks, item)
    wait_for_previous(PDL)
    if request >= batch:
        return
    is_request = tl.arange(0, BLOCK_B) == request
    kv_len = tl.sum(tl.where(is_request, lengths, 0), axis=0)
    num_chunks = tl.sum(tl.where(is_request, chunks, 0), axis=0)
    row = tl.sum(tl.where(is_request, rows, 0), axis=0).to(tl.int64)
    # Equal chunks of whole tiles: no program is left with a small remainder.
    seen = in_window(kv_len, WINDOW)
    chunk_len = tl.cdiv(tl.cdiv(seen, num_chunks), BLOCK_N) * BLOCK_N
    begin = chunk * chunk_len
    if WINDOW:
        begin += kv_len - seen
    end = tl.minimum(kv_len, begin + chunk_len)

    in_group = tl.arange(0, BLOCK_G)
    heads = kv_head * GROUP + in_group
    exists = in_group < GROUP
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


_launch = Launcher(decode_attention_kernel)
_launch_merge = Launcher(merge_kernel)


def decode_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Triton implementation: split-KV decoding (Flash-Decoding, Dao et al., 2023), planned on the device.

    The grid depends on `batch` and `max_kv_len` alone, lengths are read by the kernels: one captured graph serves
    every length up to `max_kv_len`. Where `deterministic`, a request's chunks depend on its own length alone.
    Raises ValueError for layouts that the kernel does not read.

    `b_row` and `b_kv_len` are read while the kernel before may still run: between the kernel that writes them and this
    operator there must be another that is no operator of this package but `skinny_linear`, as in every model.

    Partial results are allocated here, because their size follows from the plan, which nobody else knows; they are
    free again when the call returns, and in a graph they lie in the graph's pool.
    """
    check_layouts("decode_attention", q, k_cache, v_cache, slot_table, out, sinks, slopes, scales)
    batch, num_heads, head_dim = q.shape
    _, num_kv_heads, v_head_dim = v_cache.shape
    if batch == 0:
        return
    if window:
        max_kv_len = min(max_kv_len, window)
    format = format_of(k_cache)
    if format == E4M3 and q.is_cuda and has_fp8_products(q.device):
        format = E4M3_BY_HARDWARE
    k_cache, v_cache = as_words(k_cache), as_words(v_cache)
    block_d, block_v = (padded_head_dim(size, bool(format)) for size in (head_dim, v_head_dim))
    config = _settings(q, block_d, bool(format), deterministic)
    processors = num_processors(q.device)
    programs, resident = (config.pop(name) * processors for name in ("programs", "resident"))
    one_wave = max(1, resident // num_kv_heads)
    if deterministic:
        target_items, min_chunk = _DETERMINISTIC_CHUNKS, _DETERMINISTIC_CHUNK
    else:
        target_items = one_wave if batch <= _FEW_REQUESTS else max(one_wave, programs // num_kv_heads)
        min_chunk = _MIN_CHUNKS[batch > _SMALL_BATCH]
    longest = min(max(1, triton.cdiv(max_kv_len, min_chunk)), target_items)  # chunks of the longest request
    items = batch * longest if deterministic else min(batch * longest, target_items + batch)
    partial = q.new_empty(items, num_heads, v_head_dim, dtype=torch.float32)
    partial_log_sum = q.new_empty(items, num_heads, dtype=torch.float32)
    group = num_heads // num_kv_heads
    group_heads: int = triton.next_power_of_2(group)  # pyright: ignore[reportAssignmentType]
    # One request alone waits less for a kernel that merges its heads side by side, but sums in other steps.
    last_merges = batch > 1 or deterministic
    constants = {"V_DIM": v_head_dim, "BLOCK_V": block_v, "BLOCK_B": padded_batch(batch)}
    constants |= {"DETERMINISTIC": deterministic, "WINDOW": window}
    pairs = as_pairs(scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    _launch(
        (num_kv_heads, items),
        (
            q, k_cache, v_cache, pairs, slot_table, b_row, b_kv_len, sinks, slopes, out, partial,
            partial_log_sum, arrivals(q.device, batch * num_kv_heads),
        ),
        (
            *q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], *scale_strides, slot_table.stride(0),
            *out.stride()[:2],
        ),
        (batch, target_items, one_wave, min_chunk, scale * LOG2_E),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        SOFTCAP=softcap,
        BLOCK_G=max(16, group_heads),
        BLOCK_H=group_heads,
        BLOCK_C=max(1, _MERGED_ROWS // group_heads),
        LAST_MERGES=last_merges,
        FORMAT=format,
        **constants,
        **config,
    )  # fmt: skip
    if longest > 1 and not last_merges:
        _launch_merge(
            (num_heads, batch),
            (b_kv_len, partial, partial_log_sum, sinks, out),
            out.stride()[:2],
            (batch, target_items, one_wave, min_chunk),
            BLOCK_C=16,
            **constants,
        )


def _settings(q: Tensor, block_d: int, codes: bool, deterministic: bool) -> dict[str, int]:
    """Tiles, and how many programs there are. Those of codes depend on how many requests a program plans for, where
    results may depend on the batch.
    """
    sizes = {"shared_kib": shared_kib(q.device), "head_dim": block_d}
    if codes:
        return dict(nearest("decode_attention_codes", **sizes, batch=16 if deterministic else padded_batch(q.shape[0])))
    return dict(nearest("decode_attention", **sizes, element_bytes=q.element_size()))


def decode_attention_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Torch implementation. `max_kv_len` is at least the largest of `b_kv_len`."""
    batch, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    caches = (k_cache, v_cache, scales)
    if softcap or sinks is not None or slopes is not None:
        for index, context in enumerate(_contexts(caches, slot_table, b_row, b_kv_len, window, q.dtype)):
            if context is None:
                out[index].zero_()
            else:
                out[index] = attend(q[index : index + 1], *context, scale, window, softcap, sinks, slopes)[0]
        return
    # The heads of a group are rows of one small matrix: K and V are read once for all of them.
    grouped = (batch, num_kv_heads, num_heads // num_kv_heads, -1)
    small = max_kv_len * num_kv_heads * head_dim <= _PADDED_LIMIT
    call = _padded if batch > 1 and small and not deterministic else _one_by_one
    call(q.view(grouped), caches, slot_table, b_row, b_kv_len, max_kv_len, scale, out.view(grouped), window)


def _padded(
    q: Tensor,
    caches: Caches,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    window: int,
) -> None:
    positions = torch.arange(max_kv_len, device=q.device)
    valid = positions < b_kv_len[:, None]
    if window:
        valid &= positions >= b_kv_len[:, None] - window
    slots = slot_table[b_row, :max_kv_len]
    slots = torch.where(valid, slots, slots[:, :1]).flatten()
    k, v = (
        each.view(q.shape[0], max_kv_len, *each.shape[1:]).transpose(1, 2)
        for each in read_slots(caches, slots, q.dtype)
    )
    mask = valid[:, None, None, :]
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    # A request of length 0 has followed a stale entry: what it read there may be NaN.
    out.copy_(attended.masked_fill((b_kv_len == 0)[:, None, None, None], 0.0))


def _one_by_one(
    q: Tensor,
    caches: Caches,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,  # noqa: ARG001 - one signature for both
    scale: float,
    out: Tensor,
    window: int,
) -> None:
    for index, context in enumerate(_contexts(caches, slot_table, b_row, b_kv_len, window, q.dtype)):
        if context is None:
            out[index].zero_()
            continue
        k, v = (each.transpose(0, 1)[None] for each in context)
        out[index] = functional.scaled_dot_product_attention(q[index : index + 1], k, v, scale=scale)[0]


def _contexts(
    caches: Caches, slot_table: Tensor, b_row: Tensor, b_kv_len: Tensor, window: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor] | None]:
    """K and V that the last position of each request sees, [seen, kv_heads, head_dim]; None where there are none."""
    for row, kv_len in zip(b_row.tolist(), b_kv_len.tolist(), strict=True):
        if kv_len == 0:
            yield None
            continue
        slots = slot_table[row, max(0, kv_len - window) if window else 0 : kv_len]
        yield read_slots(caches, slots, dtype)


_operator = register(decode_attention_torch, mutates=("out",), triton=decode_attention_triton)


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
    scales: Tensor | None = None,
) -> None:
    """The operator: Triton or torch, as `use_triton` says."""
    _operator(
        q, k_cache, v_cache, slot_table, b_row, b_kv_len, max_kv_len, scale, out, deterministic, *options.arguments(),
        scales,
    )  # fmt: skip

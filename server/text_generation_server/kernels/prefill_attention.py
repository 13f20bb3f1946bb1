"""Causal attention of new tokens over everything before them, for requests of any length side by side.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads) (grouped queries, Ainslie et al., 2023).
`options` (`AttentionOptions`) are window, softcap, sinks and slopes. With a window a tile begins with the first block
that one of its queries sees; only blocks at an edge of the window and at the diagonal are masked.

Layouts: `q` `[tokens, heads, head_dim]`, `out` `[tokens, heads, v_head_dim]` (as in `decode_attention`), tokens of
request b at `b_q_start[b] : b_q_start[b + 1]`, no padding; they are the last of its `b_kv_len[b]` tokens, so a prompt
may come in pieces or continue a cached one. Position c of request b lies in slot `slot_table[b_row[b], c]`. Caches
`[slots, kv_heads, head_dim or v_head_dim]`, already holding K and V of the new tokens. `b_row` `[batch]` int64,
`b_q_start` `[batch + 1]`, `b_kv_len` `[batch]`, `slot_table` int32.
Caches may hold codes of 8 bits with `scales` (`kv_codes.py`): a tile of them becomes float16, times its scales, once
for all queries of a program. Queries and weights are float16 then.
A request without new tokens is allowed. Scores and sums are float32 on CUDA and CPU alike.

Called once a layer when a batch holds prompt tokens.
Floor: bytes of q, out, and K and V of each request once; operations 4 * heads * head_dim * (q, k pairs), bound by the
matrix rate from a few hundred tokens on.
On an H200 with 32 heads, 8 KV heads and head size 128 in bfloat16, scattered slots: 154 TFLOP/s at 512 tokens, 380 at
2,048, 452 at 8,192 (1.22 ms; cuDNN on contiguous tensors 0.91), 458 at 16,384. Chunks behind 8,192 tokens, microseconds
for 1 / 16 / 128 / 448 / 960 tokens: 30 / 38 / 77 / 155 / 319. See benchmark/results/prefill_attention.json.

What that rests on, each measured on that card:
- Slots are read one step ahead of their keys: 1.18 ms instead of 1.82 at 8,192 tokens for the same tile. With slots in
  a row and no table at all it is 1.17, so ranges of slots have no path of their own; bulk copies (TMA) gave 1.21.
- The heads of a group share a tile, so one token of a chunk is a row for each of them: 64 chunks of 16 tokens behind
  512 take 50 us instead of 142.
- Where tiles are too few for the card, programs share what a tile sees, and the last adds up: one token behind 8,192
  takes 30 us instead of 196, and behind 32,768 70 instead of 801.

`deterministic`: a token's result is the same to the bit wherever its prompt is cut, whichever requests are beside it
and whatever `max_q_len` is, so a decode may be a chunk of one token. It costs 142 us instead of 129 for 64 decodes at
2,048, 288 instead of 254 for 256 at 1,024, but 195 instead of 16 for one at 8,192, whose keys are not shared then. The
steps of a sum follow from BLOCK_N and from the rows of a warp, so all entries of one head size and type agree in both.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor
from torch.nn import functional

from ._attention import (
    LOG2_E,
    accumulate,
    apply_options,
    check_layouts,
    finite,
    load_per_head,
    load_rows,
    load_slots,
    locate,
    padded_batch,
    padded_head_dim,
)
from ._attention_torch import attend
from ._config import nearest
from ._device import num_processors, shared_kib
from ._kv_codes import load_scales, to_float16, widen
from ._launch import Launcher, arrivals, is_last, let_next_start, wait_for_previous
from ._register import register
from ._triton import tl, triton
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_codes import as_bytes, as_pairs, format_of, read_slots

# A part is at least so many keys, in whole blocks of any tile, and there are at most so many: one program adds them up.
_MIN_PART = 256
_MAX_PARTS = 32


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
    """Keys from `begin` to `end`: all of them seen by every query, or, where `MASKED`, those in its window.

    Without a window that is all up to its own position.

    Slots are read a step ahead, up to `seen_end`: a step that waited for its own would wait twice for memory.
    """
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        next_slots = load_slots(table_row_ptr, keys + BLOCK_N, seen_end, True)
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
        v = load_rows(v_head_ptr, slots, stride_v_slot, keys < end, MASKED, V_DIM, BLOCK_V)
        if FORMAT:
            v = widen(v, FORMAT) * v_scales.to(tl.float16)[:, None]
        acc, row_max, row_sum = accumulate(scores, units, v, acc, row_max, row_sum, WINDOW > 0 and MASKED)
        slots = next_slots
    return acc, row_max, row_sum, slots


@triton.jit
def _merge(
    partial_ptr,  # [parts, BLOCK_M, BLOCK_V] of this tile
    partial_log_sum_ptr,  # [parts, BLOCK_M]
    sinks,  # [BLOCK_M] or None
    parts,
    count,  # rows that hold a query
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ALL_MASKED: tl.constexpr,  # as of `accumulate`
):
    """[BLOCK_M, BLOCK_V], the results of all parts added up in their order. Other programs' are in L2, hence `.cg`."""
    rows = tl.arange(0, BLOCK_M)
    places = rows[:, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    read = (rows < count)[:, None]
    acc = tl.load(partial_ptr + places, mask=read, other=0.0, cache_modifier=".cg")
    maximum = tl.load(partial_log_sum_ptr + rows, cache_modifier=".cg")
    weight_sum = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    for part in range(1, parts):
        partial_tile_ptr = partial_ptr + part * BLOCK_M * BLOCK_V + places
        partial = tl.load(partial_tile_ptr, mask=read, other=0.0, cache_modifier=".cg")
        log_sums = tl.load(partial_log_sum_ptr + part * BLOCK_M + rows, cache_modifier=".cg")
        new_maximum = tl.maximum(maximum, log_sums)
        base = finite(new_maximum) if ALL_MASKED else new_maximum
        correction = tl.exp2(maximum - base)
        weights = tl.exp2(log_sums - base)
        acc = acc * correction[:, None] + partial * weights[:, None]
        weight_sum = weight_sum * correction + weights
        maximum = new_maximum
    if sinks is not None:
        weight_sum += tl.exp2(sinks - maximum)
    return acc / weight_sum[:, None]


@triton.jit(
    do_not_specialize=["batch", "max_parts"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_q_start_ptr", "b_kv_len_ptr"],
)
def prefill_attention_kernel(
    q_ptr,  # [tokens, heads, HEAD_DIM]
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM], where FORMAT uint8
    v_cache_ptr,  # [slots, kv_heads, V_DIM], likewise
    scales_ptr,  # [slots, kv_heads] int64, both scales side by side, or None
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_q_start_ptr,  # [batch + 1]
    b_kv_len_ptr,  # [batch]
    sinks_ptr,  # [heads] float32 or None
    slopes_ptr,  # [heads] float32 or None
    out_ptr,  # [tokens, heads, V_DIM]
    partial_ptr,  # [tiles, kv_heads, max_parts, BLOCK_M, BLOCK_V] float32, where max_parts > 1
    partial_log_sum_ptr,  # [tiles, kv_heads, max_parts, BLOCK_M] float32, likewise
    arrived_ptr,  # [tiles, kv_heads] int32, zero before and after
    stride_q_token,
    stride_q_head,
    stride_k_slot: tl.constexpr,
    stride_k_head: tl.constexpr,
    stride_v_slot: tl.constexpr,
    stride_v_head: tl.constexpr,
    stride_scales_slot: tl.constexpr,
    stride_scales_head: tl.constexpr,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    max_parts,
    scale_log2,  # scale times log2(e)
    GROUP: tl.constexpr,  # heads for each KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least HEAD_DIM and 16
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,  # power of two, at least V_DIM and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    MIN_PART: tl.constexpr,
    SPLIT: tl.constexpr,  # whether max_parts > 1
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FORMAT: tl.constexpr,  # of `kv_codes`
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program attends with BLOCK_M queries of one request and KV head to one part of what they see.

    Queries are heads within tokens: all heads of a group share what is read. Of a tile's parts, the last to finish
    adds up what all of them have found.
    """
    let_next_start(PDL)
    wait_for_previous(PDL)
    requests = tl.arange(0, BLOCK_B)
    here = requests < batch
    q_starts = tl.load(b_q_start_ptr + requests, mask=here, other=0)
    q_lens = tl.load(b_q_start_ptr + 1 + requests, mask=here, other=0) - q_starts
    request, tile = locate(tl.cdiv(q_lens * GROUP, BLOCK_M), tl.program_id(1))
    if request >= batch:
        return
    q_start = tl.load(b_q_start_ptr + request)
    q_len = tl.load(b_q_start_ptr + request + 1) - q_start
    kv_len = tl.load(b_kv_len_ptr + request)
    # The last tile has most to read: it starts first, so that short ones fill the end.
    first = (tl.cdiv(q_len * GROUP, BLOCK_M) - 1 - tile) * BLOCK_M
    prefix = kv_len - q_len
    # Keys before `seen_by_all` need no mask, and from `end` on none is seen.
    seen_by_all = (prefix + first // GROUP + 1) // BLOCK_N * BLOCK_N
    end = tl.minimum(kv_len, prefix + (first + BLOCK_M - 1) // GROUP + 1)
    begin, part_end, part, parts = 0, seen_by_all, 0, 1
    shared = seen_by_all
    if WINDOW:
        # Whole blocks, so that a query's sum has the same steps in every tile: from that of the first key that the
        # first query sees, and from `full` on those whose keys the last one sees too.
        begin = tl.maximum(prefix + first // GROUP + 1 - WINDOW, 0) // BLOCK_N * BLOCK_N
        full = tl.cdiv(tl.maximum(end - WINDOW, 0), BLOCK_N) * BLOCK_N
        shared = seen_by_all - begin
    if SPLIT:
        # Parts divide what is before `seen_by_all`, in whole blocks; the last part has the rest as well.
        part_len = tl.maximum(tl.cdiv(shared // BLOCK_N, max_parts) * BLOCK_N, MIN_PART)
        parts = tl.maximum(tl.cdiv(shared, part_len), 1)
        part = tl.program_id(2)
        if part >= parts:
            return
        if WINDOW:
            begin += part * part_len
        else:
            begin = part * part_len
        part_end = tl.minimum(begin + part_len, seen_by_all)
        end = tl.where(part == parts - 1, end, part_end)

    kv_head = tl.program_id(0)
    rows = first + tl.arange(0, BLOCK_M)
    elements = tl.arange(0, BLOCK_D)
    exists = rows < q_len * GROUP
    tokens = (q_start + rows // GROUP).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
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
        full = tl.minimum(tl.maximum(full, begin), part_end)
        acc, row_max, row_sum, slots = _attend(
            acc, row_max, row_sum, slots, q, positions, slopes, table_row_ptr, k_head_ptr, v_head_ptr,
            scales_head_ptr, begin, full, end, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
            FORMAT, True, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_N,
        )  # fmt: skip
        begin = full
    acc, row_max, row_sum, slots = _attend(
        acc, row_max, row_sum, slots, q, positions, slopes, table_row_ptr, k_head_ptr, v_head_ptr,
        scales_head_ptr, begin, part_end, end, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
        FORMAT, False, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_N,
    )  # fmt: skip
    acc, row_max, row_sum, slots = _attend(
        acc, row_max, row_sum, slots, q, positions, slopes, table_row_ptr, k_head_ptr, v_head_ptr,
        scales_head_ptr, part_end, end, end, stride_k_slot, stride_v_slot, stride_scales_slot, scale_log2,
        FORMAT, True, WINDOW, SOFTCAP, HEAD_DIM, BLOCK_D, V_DIM, BLOCK_V, BLOCK_N,
    )  # fmt: skip
    elements = tl.arange(0, BLOCK_V)
    if sinks is not None:
        # Of several parts none counts the sink: their merge does.
        row_sum += tl.where(parts == 1, tl.exp2(sinks - row_max), 0.0)
    if WINDOW:
        # A part may lie outside of a query's window, and has sum 0 for it.
        row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    acc = acc / row_sum[:, None]
    if SPLIT and parts > 1:
        tile_index = tl.program_id(1) * tl.num_programs(0) + kv_head
        first_row = tile_index.to(tl.int64) * max_parts * BLOCK_M
        part_row = first_row + part * BLOCK_M
        members = tl.arange(0, BLOCK_M)
        count = q_len * GROUP - first
        partial_tile_ptr = partial_ptr + part_row * BLOCK_V + members[:, None] * BLOCK_V + elements[None, :]
        tl.store(partial_tile_ptr, acc, mask=(members < count)[:, None])
        tl.store(partial_log_sum_ptr + part_row + members, row_max + tl.log2(row_sum))
        if not is_last(arrived_ptr + tile_index, parts):
            return
        acc = _merge(
            partial_ptr + first_row * BLOCK_V, partial_log_sum_ptr + first_row, sinks, parts, count,
            BLOCK_V, BLOCK_M, WINDOW > 0,
        )  # fmt: skip
    stored = exists[:, None] & (elements < V_DIM)[None, :]
    out_tile_ptr = out_ptr + (tokens * stride_out_token + heads * stride_out_head)[:, None] + elements[None, :]
    tl.store(out_tile_ptr, acc.to(out_ptr.dtype.element_ty), mask=stored)


_launch = Launcher(prefill_attention_kernel)


def prefill_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_q_start: Tensor,
    b_kv_len: Tensor,
    max_q_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Triton implementation. `max_q_len` only chooses the tiles; nothing is read back from the device.

    Raises ValueError for layouts that the kernel does not read.
    """
    check_layouts("prefill_attention", q, k_cache, v_cache, slot_table, out, sinks, slopes, scales)
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, v_head_dim = v_cache.shape
    batch = b_row.shape[0]
    if num_tokens == 0:
        return
    block_d, block_v = padded_head_dim(head_dim), padded_head_dim(v_head_dim)
    format = format_of(k_cache)
    pairs = as_pairs(scales)
    scale_strides = (0, 0) if pairs is None else pairs.stride()[:2]
    sizes = {"head_dim": block_d, "element_bytes": 1 if format else q.element_size(), "q_len": max(1, max_q_len)}
    config = dict(nearest("prefill_attention", shared_kib=shared_kib(q.device), **sizes))
    resident = config.pop("resident") * num_processors(q.device)
    group = num_heads // num_kv_heads
    # At most this many tiles: each request adds less than one that is not full.
    tiles = triton.cdiv(num_tokens * group, config["BLOCK_M"]) + batch
    positions = min(slot_table.shape[1], window + max_q_len) if window else slot_table.shape[1]
    max_parts = 1 if deterministic else _most_parts(resident // (tiles * num_kv_heads), positions)
    partial_rows = tiles * num_kv_heads * max_parts * config["BLOCK_M"] if max_parts > 1 else 0
    partial = q.new_empty(partial_rows * block_v, dtype=torch.float32)
    partial_log_sum = q.new_empty(partial_rows, dtype=torch.float32)
    arrived = arrivals(q.device, tiles * num_kv_heads if max_parts > 1 else 0)
    _launch(
        (num_kv_heads, tiles, max_parts),
        (
            q, as_bytes(k_cache), as_bytes(v_cache), pairs, slot_table, b_row, b_q_start, b_kv_len, sinks,
            slopes, out, partial, partial_log_sum, arrived,
        ),
        (
            *q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], *scale_strides, slot_table.stride(0),
            *out.stride()[:2],
        ),
        (batch, max_parts, scale * LOG2_E),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        V_DIM=v_head_dim,
        BLOCK_V=block_v,
        BLOCK_B=padded_batch(batch),
        MIN_PART=_MIN_PART,
        SPLIT=max_parts > 1,
        WINDOW=window,
        SOFTCAP=softcap,
        FORMAT=format,
        **config,
    )  # fmt: skip


def _most_parts(idle: int, positions: int) -> int:
    """Into how many parts a tile's context is cut at most. `idle` programs for each tile run at once."""
    return max(1, min(idle, -(-positions // _MIN_PART), _MAX_PARTS))


def prefill_attention_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_q_start: Tensor,
    b_kv_len: Tensor,
    max_q_len: int,  # noqa: ARG001 - for kernels whose grid depends on it
    scale: float,
    out: Tensor,
    deterministic: bool = False,  # noqa: ARG001 - for kernels that divide contexts by how many there are
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Torch implementation: one fused attention call a request, so nothing is padded."""
    starts, kv_lens, rows = b_q_start.tolist(), b_kv_len.tolist(), b_row.tolist()
    for row, start, end, kv_len in zip(rows, starts, starts[1:], kv_lens, strict=False):
        q_len = end - start
        if q_len == 0:
            continue
        first_seen = max(0, kv_len - q_len + 1 - window) if window else 0
        slots = slot_table[row, first_seen:kv_len]
        k, v = read_slots((k_cache, v_cache, scales), slots, q.dtype)
        if softcap or sinks is not None or slopes is not None:
            out[start:end] = attend(q[start:end], k, v, scale, window, softcap, sinks, slopes)
        else:
            out[start:end] = _attend_fused(q[start:end], k, v, scale, window)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """Attention of the last positions of one request, with torch's fused call."""
    q_len, kv_len = q.shape[0], k.shape[0]
    mask = None
    if q_len > 1 and (q_len < kv_len or 0 < window < kv_len):
        mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
        if window:
            mask = mask.triu(kv_len - q_len + 1 - window)
    attended = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None and q_len > 1,
        scale=scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


_operator = register(prefill_attention_torch, mutates=("out",), triton=prefill_attention_triton)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_q_start: Tensor,
    b_kv_len: Tensor,
    max_q_len: int,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
    scales: Tensor | None = None,
) -> None:
    """The operator: Triton or torch, as `use_triton` says."""
    batch = (slot_table, b_row, b_q_start, b_kv_len, max_q_len)
    _operator(q, k_cache, v_cache, *batch, scale, out, deterministic, *options.arguments(), scales)

"""Absorbed causal attention of prompt chunks over the latent cache, for a batch of requests of any lengths.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . cache[c]) * cache[c, :rank]

Absorbed as in `latent_decode_attention`: one vector of a position is key and value of all heads, so the rows of a tile
are heads within tokens, and all of them share the loads.

Layouts: `q` `[tokens, heads, rank + rope]`, `out` `[tokens, heads, rank]`, tokens of request b at
`starts[b] : starts[b + 1]` (`Chunks`), no padding; they are the last of its `kv_lens[b]` tokens. Position c of request
b lies in slot `slot_table[rows[b], c]`. `cache` `[slots, 1, rank + rope]`, already holding the new tokens. A request
may have no new tokens; nothing is written for tokens of one of length 0. Accumulation is float32.
`deterministic`: a token's result is the same to the bit wherever its prompt is cut, whatever the rest of the batch and
`max_len`. Keys are then not split.

Called once a layer when a batch holds prompt tokens whose chunks are too short for `latent_expand` to pay
(`layers/infer/expanded.py`). Operations: 2 * heads * (2 * rank + rope) for each pair of query and key, against
2 * heads * (key + rope + value) once expanded. On an H200 in bfloat16 with rank 512, RoPE 64 and 16 heads: 241 TFLOP/s
at 8,192 tokens. Measurements: docs/lab/2026-11-latent-attention.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.batches import find_tile, padded_batch
from ..runtime.constants import LOG2_E
from ..runtime.device import num_sms, shared_kib
from ..runtime.launch import Launcher, is_last, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim
from ..runtime.triton import tl, triton
from ._latent_layouts import check_latent_layouts
from ._online_softmax import accumulate, load_rows, load_slots
from ._prefill_tiles import Tiling, merge_partials, plan_splits, seen_by, store_partial
from .kv_cache import KvCache
from .prefill_attention import prefill_attention_torch
from .requests import Chunks


@triton.jit
def _attend(
    acc,  # [BLOCK_M, BLOCK_R]
    row_max,
    row_sum,
    slots,  # [BLOCK_N] of the keys from `begin` on
    q,  # [BLOCK_M, BLOCK_R]
    q_rotated,  # [BLOCK_M, BLOCK_E]
    positions,  # [BLOCK_M] of the queries
    table_row_ptr,
    cache_ptr,
    begin,
    end,
    seen_end,
    stride_slot,
    scale_log2,
    MASKED: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attends to keys from `begin` to `end`: unmasked, or, where `MASKED`, up to a query's position.

    Slots are loaded one step ahead, up to `seen_end`, so that no step waits for memory twice.
    """
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        next_slots = load_slots(table_row_ptr, keys + BLOCK_N, seen_end, True)
        latent = load_rows(cache_ptr, slots, stride_slot, keys < end, MASKED, RANK, BLOCK_R)
        rotated = load_rows(cache_ptr + RANK, slots, stride_slot, keys < end, MASKED, ROPE, BLOCK_E)
        scores = tl.dot(q, latent.T, input_precision="tf32x3")
        scores = tl.dot(q_rotated, rotated.T, scores, input_precision="tf32x3")
        if MASKED:
            scores = tl.where(keys[None, :] <= positions[:, None], scores, float("-inf"))
        acc, row_max, row_sum = accumulate(scores, scale_log2, latent, acc, row_max, row_sum, False)
        slots = next_slots
    return acc, row_max, row_sum, slots


@triton.jit(
    do_not_specialize=["batch", "max_splits"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_q_start_ptr", "b_kv_len_ptr"],
)
def latent_prefill_attention_kernel(
    q_ptr,  # [tokens, HEADS, RANK + ROPE]
    cache_ptr,  # [slots, RANK + ROPE]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_q_start_ptr,  # [batch + 1]
    b_kv_len_ptr,  # [batch]
    out_ptr,  # [tokens, HEADS, RANK]
    partial_ptr,  # [tiles, max_splits, BLOCK_M, BLOCK_R] float32, where max_splits > 1
    partial_log_sum_ptr,  # [tiles, max_splits, BLOCK_M] float32, likewise
    arrived_ptr,  # [tiles] int32, zero before and after
    stride_q_token,
    stride_q_head,
    stride_slot: tl.constexpr,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    max_splits,
    scale_log2,  # scale times log2(e)
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,  # power of two, at least RANK and 16
    ROPE: tl.constexpr,
    BLOCK_E: tl.constexpr,  # power of two, at least ROPE and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    MIN_SPLIT: tl.constexpr,
    SPLIT: tl.constexpr,  # whether max_splits > 1
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block attends with BLOCK_M query rows of one request to one split of their keys. Of a tile's splits,
    the last to finish merges the partials of all.
    """
    launch_dependents(PDL)
    wait_for_previous(PDL)
    request, tile = find_tile(b_q_start_ptr, tl.program_id(0), batch, HEADS, BLOCK_M, BLOCK_B)
    if request >= batch:
        return
    q_start = tl.load(b_q_start_ptr + request)
    q_len = tl.load(b_q_start_ptr + request + 1) - q_start
    kv_len = tl.load(b_kv_len_ptr + request)
    # The last tile reads most, so it starts first, and short tiles fill the tail.
    first = (tl.cdiv(q_len * HEADS, BLOCK_M) - 1 - tile) * BLOCK_M
    prefix = kv_len - q_len
    if kv_len == 0:
        return
    seen_by_all, end = seen_by(first, prefix, kv_len, HEADS, BLOCK_M, BLOCK_N)
    begin, split_end, split, splits = 0, seen_by_all, 0, 1
    if SPLIT:
        split_len, splits = plan_splits(begin, seen_by_all, max_splits, BLOCK_N, MIN_SPLIT)
        split = tl.program_id(1)
        if split >= splits:
            return
        begin = split * split_len
        split_end = tl.minimum(begin + split_len, seen_by_all)
        end = tl.where(split == splits - 1, end, split_end)

    rows = first + tl.arange(0, BLOCK_M)
    exists = rows < q_len * HEADS
    tokens = (q_start + rows // HEADS).to(tl.int64)
    heads = rows % HEADS
    ranks = tl.arange(0, BLOCK_R)
    rotated = tl.arange(0, BLOCK_E)
    q_row_ptr = q_ptr + (tokens * stride_q_token + heads * stride_q_head)[:, None]
    q = tl.load(q_row_ptr + ranks[None, :], mask=exists[:, None] & (ranks < RANK)[None, :], other=0.0)
    q_rotated = tl.load(
        q_row_ptr + RANK + rotated[None, :], mask=exists[:, None] & (rotated < ROPE)[None, :], other=0.0
    )
    positions = prefix + rows // HEADS
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + request).to(tl.int64) * stride_table_row

    acc = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    slots = load_slots(table_row_ptr, begin + tl.arange(0, BLOCK_N), end, True)
    acc, row_max, row_sum, slots = _attend(
        acc, row_max, row_sum, slots, q, q_rotated, positions, table_row_ptr, cache_ptr, begin, split_end, end,
        stride_slot, scale_log2, False, RANK, BLOCK_R, ROPE, BLOCK_E, BLOCK_N,
    )  # fmt: skip
    acc, row_max, row_sum, slots = _attend(
        acc, row_max, row_sum, slots, q, q_rotated, positions, table_row_ptr, cache_ptr, split_end, end, end,
        stride_slot, scale_log2, True, RANK, BLOCK_R, ROPE, BLOCK_E, BLOCK_N,
    )  # fmt: skip
    acc = acc / row_sum[:, None]
    if SPLIT and splits > 1:
        tile_index = tl.program_id(0)
        first_row = tile_index.to(tl.int64) * max_splits * BLOCK_M
        partial_tile_ptr, log_sum_tile_ptr = partial_ptr + first_row * BLOCK_R, partial_log_sum_ptr + first_row
        count = q_len * HEADS - first
        store_partial(
            partial_tile_ptr, log_sum_tile_ptr, split, acc, row_max + tl.log2(row_sum), count, BLOCK_R, BLOCK_M
        )
        if not is_last(arrived_ptr + tile_index, splits):
            return
        acc = merge_partials(partial_tile_ptr, log_sum_tile_ptr, None, splits, count, BLOCK_R, BLOCK_M, False)
    stored = exists[:, None] & (ranks < RANK)[None, :]
    out_row_ptr = out_ptr + (tokens * stride_out_token + heads * stride_out_head)[:, None]
    tl.store(out_row_ptr + ranks[None, :], acc.to(out_ptr.dtype.element_ty), mask=stored)


_launch = Launcher(latent_prefill_attention_kernel, writes=("out", "partial", "partial_log_sum", "arrived"))


def latent_prefill_attention_triton(
    q: Tensor, cache: Tensor, batch: Chunks, scale: float, out: Tensor, deterministic: bool = False
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    slot_table = batch.slot_table
    check_latent_layouts("latent_prefill_attention", q, cache, slot_table, out)
    (num_tokens, heads, width), rank = q.shape, out.shape[2]
    requests = batch.rows.shape[0]
    if num_tokens == 0:
        return
    block_r = padded_head_dim(rank)
    sizes = {"shared_kib": shared_kib(q.device), "element_bytes": q.element_size(), "rank": block_r}
    config = dict(nearest("latent_prefill_attention", **sizes))
    resident = config.pop("resident") * num_sms(q.device)
    rows, positions = num_tokens * heads, slot_table.shape[1]
    tiling = Tiling.of(rows, requests, 1, positions, resident, config["BLOCK_M"], block_r, deterministic, q.device)
    for variant in tiling.variants:
        _launch(
            (tiling.tiles, tiling.max_splits),
            (
                q, cache, slot_table, batch.rows, batch.starts, batch.kv_lens, out, tiling.partial,
                tiling.partial_log_sum, tiling.arrived,
            ),
            (*q.stride()[:2], cache.stride(0), slot_table.stride(0), *out.stride()[:2]),
            (requests, tiling.max_splits, scale * LOG2_E),
            HEADS=heads,
            RANK=rank,
            BLOCK_R=block_r,
            ROPE=width - rank,
            BLOCK_E=padded_head_dim(width - rank),
            BLOCK_B=padded_batch(requests),
            **variant,
            **config,
        )  # fmt: skip


def latent_prefill_attention_torch(
    q: Tensor, cache: Tensor, batch: Chunks, scale: float, out: Tensor, deterministic: bool = False
) -> None:
    """Torch implementation: grouped attention with one head whose values are the first elements of its keys."""
    prefill_attention_torch(q, KvCache(cache, cache[..., : out.shape[2]]), batch, scale, out, deterministic)


latent_prefill_attention = register(
    latent_prefill_attention_torch, mutates=("out",), triton=latent_prefill_attention_triton
)

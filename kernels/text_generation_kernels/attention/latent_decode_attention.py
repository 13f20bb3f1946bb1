"""Absorbed decode attention over the latent cache (multi-head latent attention, DeepSeek-V2, 2024), split-KV.

    out[t] = sum over c < kv_lens[t] of softmax(scale * q[t] . cache[c]) * cache[c, :rank]

The query has already absorbed the key projection of the latent vectors, and the value projection follows the sum. All
heads read one vector of a position, which is key and value, and read it once. A token of length 0 (a padded row)
gets zeros.

Layouts: `q` `[D, heads, rank + rope]`, `out` `[D, heads, rank]`; position c of token t (`Decodes`) lies in slot
`slot_table[rows[t], c]`. `cache` `[slots, 1, rank + rope]`, already holding the new tokens. Table entries from
`kv_lens[t]` on may be stale and are never followed. `deterministic`: a token's result does not depend, to the bit, on
the rest of the batch.

`log_sum`, where it is given, is `[D, heads]` float32, contiguous, of requests of one token each: the logarithm to base
2 of the sum of exp(scale * q[t] . cache[c]), -inf for length 0. By it, results over parts of a context are merged
(`merge_shares`).

GEMMs are transposed: positions are rows of the MMA instructions and heads their columns, because 16 heads fill the
columns of an instruction that wants 64 rows. Heads of all tokens of a request are columns (`decode_attention`). More
columns than BLOCK_H belong to further thread blocks, which find the vectors in L2. Contexts are cut into chunks as in
`decode_attention`, and a second kernel merges them.

Called once a layer in a decode step. Bytes floor: sum over requests of their longest kv_len * (rank + rope) * element
size. Operations: 2 * heads * (2 * rank + rope) for each position and token, compute-bound from about 128 columns on. On
an H200 in bfloat16, rank 512 and RoPE 64, 16 heads: 61.5 us at 64 x 2,048, 58 % of copy bandwidth. Measurements:
docs/lab/2026-11-latent-attention.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.batches import padded_batch
from ..runtime.constants import LOG2_E
from ..runtime.device import num_sms, shared_kib
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import padded_head_dim
from ..runtime.triton import tl, triton
from ._chunking import Chunking
from ._latent_layouts import check_latent_layouts
from ._online_softmax import finite, load_rows, load_slots
from ._split_kv import bounds, fill_padding, find_chunk, row_offsets
from .decode_attention import decode_attention_torch
from .kv_cache import KvCache
from .requests import Decodes, tokens_of_a_request

_MIN_CHUNK = 64
"""Least positions of a chunk."""


@triton.jit(
    do_not_specialize=["batch", "target_items", "one_wave", "min_chunk"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr"],
)
def latent_decode_attention_kernel(
    q_ptr,  # [batch * WIDTH, HEADS, RANK + ROPE]
    cache_ptr,  # [slots, RANK + ROPE]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch * WIDTH]
    b_kv_len_ptr,  # [batch * WIDTH]
    out_ptr,  # [batch * WIDTH, HEADS, RANK]
    partial_ptr,  # [items, WIDTH * HEADS, RANK] float32, written for requests of several chunks
    partial_log_sum_ptr,  # [items, WIDTH * HEADS] float32, likewise
    log_sum_ptr,  # [batch, HEADS] float32, written for requests of one chunk, or None
    stride_q_token,
    stride_q_head,
    stride_slot,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    target_items,
    one_wave,
    min_chunk,
    scale_log2,  # scale times log2(e)
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,  # power of two, at least RANK and 16
    ROPE: tl.constexpr,
    BLOCK_E: tl.constexpr,  # power of two, at least ROPE and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    BLOCK_H: tl.constexpr,  # heads of all tokens that a thread block has
    BLOCK_N: tl.constexpr,
    DETERMINISTIC: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,  # tokens of a request
    PDL: tl.constexpr,
):
    """One thread block attends with BLOCK_H columns, the heads of one token after the other, over one chunk of one
    request.
    """
    launch_dependents(PDL)
    item = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    exists = columns < HEADS * WIDTH
    heads, tokens = columns, columns
    if WIDTH > 1:
        heads, tokens = columns % HEADS, columns // HEADS
    if fill_padding(
        out_ptr, b_kv_len_ptr, item, tl.num_programs(1), batch, heads, tokens, exists, stride_out_token,
        stride_out_head, RANK, BLOCK_R, BLOCK_B, WIDTH, PDL,
    ):  # fmt: skip
        return
    request, chunk, lengths, chunks, rows = find_chunk(
        b_row_ptr, b_kv_len_ptr, item, batch, target_items, one_wave, min_chunk, BLOCK_B, DETERMINISTIC, WINDOW, WIDTH
    )
    wait_for_previous(PDL)
    if request >= batch:
        return
    row, _, num_chunks, begin, end = bounds(request, chunk, lengths, chunks, rows, BLOCK_B, BLOCK_N, WINDOW)
    if WIDTH > 1:
        kv_lens = tl.load(b_kv_len_ptr + request * WIDTH + tokens, mask=exists, other=0)
        # Tokens may be missing, and slots behind the last one are stale.
        end = tl.minimum(end, tl.max(kv_lens, axis=0))

    ranks = tl.arange(0, BLOCK_R)
    rotated = tl.arange(0, BLOCK_E)
    q_request_ptr = q_ptr + (request * WIDTH).to(tl.int64) * stride_q_token
    q_request_ptr += row_offsets(heads[None, :], tokens[None, :], stride_q_token, stride_q_head, WIDTH)
    q = tl.load(q_request_ptr + ranks[:, None], mask=exists[None, :] & (ranks < RANK)[:, None], other=0.0)
    q_rotated_ptr = q_request_ptr + RANK + rotated[:, None]
    q_rotated = tl.load(q_rotated_ptr, mask=exists[None, :] & (rotated < ROPE)[:, None], other=0.0)
    table_row_ptr = slot_table_ptr + row * stride_table_row

    acc = tl.zeros([BLOCK_R, BLOCK_H], dtype=tl.float32)
    maximum = tl.full([BLOCK_H], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([BLOCK_H], dtype=tl.float32)
    # Slots are loaded one step ahead, so that no step waits for memory twice.
    slots = load_slots(table_row_ptr, begin + tl.arange(0, BLOCK_N), end, True)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < end
        next_slots = load_slots(table_row_ptr, positions + BLOCK_N, end, True)
        latent = load_rows(cache_ptr, slots, stride_slot, valid, True, RANK, BLOCK_R)
        keys = load_rows(cache_ptr + RANK, slots, stride_slot, valid, True, ROPE, BLOCK_E)
        scores = tl.dot(latent, q, input_precision="tf32x3")
        scores = tl.dot(keys, q_rotated, scores, input_precision="tf32x3")
        seen = valid[:, None]
        if WIDTH > 1:
            seen = positions[:, None] < kv_lens[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0) * scale_log2)
        base = finite(new_maximum) if WIDTH > 1 else new_maximum
        correction = tl.exp2(maximum - base)
        weights = tl.exp2(scores * scale_log2 - base[None, :])
        weight_sum = weight_sum * correction + tl.sum(weights, axis=0)
        acc = tl.dot(latent.T, weights.to(latent.dtype), acc * correction[None, :], input_precision="tf32x3")
        maximum = new_maximum
        slots = next_slots

    # An empty context (a padded row, or a chunk that rounding left empty) has sum 0 and yields zeros.
    acc = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[None, :]
    stored = exists[None, :] & (ranks < RANK)[:, None]
    if num_chunks == 1:
        out_ptrs = out_ptr + (request * WIDTH).to(tl.int64) * stride_out_token
        out_ptrs += row_offsets(heads[None, :], tokens[None, :], stride_out_token, stride_out_head, WIDTH)
        tl.store(out_ptrs + ranks[:, None], acc.to(out_ptr.dtype.element_ty), mask=stored)
        if log_sum_ptr is not None:
            tl.store(log_sum_ptr + request * HEADS + columns, maximum + tl.log2(weight_sum), mask=exists)
        return
    partial_rows = item.to(tl.int64) * (HEADS * WIDTH) + columns
    tl.store(partial_ptr + partial_rows[None, :] * RANK + ranks[:, None], acc, mask=stored)
    tl.store(partial_log_sum_ptr + partial_rows, maximum + tl.log2(weight_sum), mask=exists)


_launch = Launcher(
    latent_decode_attention_kernel,
    writes=("out", "partial", "partial_log_sum", "log_sum"),
    reads_early=("b_row", "b_kv_len"),
)


def latent_decode_attention_triton(
    q: Tensor,
    cache: Tensor,
    batch: Decodes,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    log_sum: Tensor | None = None,
) -> None:
    """Triton implementation: split-KV decoding, planned on the device as by `decode_attention`. What that says of
    `rows`, `kv_lens` and partials holds here too. Raises ValueError for layouts that the kernel does not read.
    """
    slot_table = batch.slot_table
    check_latent_layouts("latent_decode_attention", q, cache, slot_table, out)
    (tokens, heads, size), rank = q.shape, out.shape[2]
    width = tokens_of_a_request("latent_decode_attention", batch, tokens, deterministic)
    if log_sum is not None:
        if log_sum.shape != q.shape[:2] or not log_sum.is_contiguous() or width > 1:
            raise ValueError("latent_decode_attention: log_sum must be contiguous [tokens, heads], of single tokens")
        # What no thread block attends with: padding.
        log_sum.fill_(float("-inf"))
    if (requests := tokens // width) == 0:
        return
    block_r = padded_head_dim(rank)
    sizes = {"shared_kib": shared_kib(q.device), "element_bytes": q.element_size(), "rank": block_r}
    # Deterministic tiles must not depend on the batch.
    sizes |= {"heads": heads * width, "batch": 16 if deterministic else padded_batch(requests)}
    config = dict(nearest("latent_decode_attention", **sizes))
    processors, tiles = num_sms(q.device), triton.cdiv(heads * width, config["BLOCK_H"])
    programs, resident = (config.pop(name) * processors // tiles for name in ("programs", "resident"))
    chunks = Chunking.of(out, batch.max_kv_len, programs, resident, _MIN_CHUNK, deterministic, width=width)
    _launch(
        (tiles, chunks.items),
        (q, cache, slot_table, batch.rows, batch.kv_lens, out, chunks.partial, chunks.partial_log_sum, log_sum),
        (*q.stride()[:2], cache.stride(0), slot_table.stride(0), *out.stride()[:2]),
        (*chunks.planned, scale * LOG2_E),
        HEADS=heads,
        RANK=rank,
        BLOCK_R=block_r,
        ROPE=size - rank,
        BLOCK_E=padded_head_dim(size - rank),
        **chunks.constants,
        **config,
    )
    chunks.merge(batch.kv_lens, None, out, block_r, 8, log_sum=log_sum)


def latent_decode_attention_torch(
    q: Tensor,
    cache: Tensor,
    batch: Decodes,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    log_sum: Tensor | None = None,
) -> None:
    """Torch implementation: grouped attention with one head whose values are the first elements of its keys."""
    decode_attention_torch(q, KvCache(cache, cache[..., : out.shape[2]]), batch, scale, out, deterministic)
    if log_sum is None:
        return
    log_sum.fill_(float("-inf"))
    for token, (row, kv_len) in enumerate(zip(batch.rows.tolist(), batch.kv_lens.tolist(), strict=True)):
        scores = q[token].float() @ cache[batch.slot_table[row, :kv_len].long(), 0].float().T * scale
        log_sum[token] = scores.logsumexp(dim=1) * LOG2_E


latent_decode_attention = register(
    latent_decode_attention_torch, mutates=("out",), triton=latent_decode_attention_triton
)

"""Causal attention of new tokens over everything before them, for requests of any length side by side.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads) (grouped queries, Ainslie et al., 2023).

Layouts: `q`, `out` `[tokens, heads, head_dim]`, tokens of request b at `b_q_start[b] : b_q_start[b + 1]`, no padding;
they are the last of its `b_kv_len[b]` tokens, so a prompt may come in pieces or continue a cached one. Position c of
request b lies in slot `slot_table[b_row[b], c]`. Caches `[slots, kv_heads, head_dim]`, already holding K and V of the
new tokens. `b_row` `[batch]` int64, `b_q_start` `[batch + 1]`, `b_kv_len` `[batch]`, `slot_table` int32.
A request without new tokens is allowed. Scores and sums are float32 on CUDA and CPU alike.

Called once a layer when a batch holds prompt tokens.
Floor: bytes of q, out, and K and V of each request once; operations 4 * heads * head_dim * (q, k pairs), bound by the
matrix rate from a few hundred tokens on.
On an H200 with 32 heads, 8 KV heads and head size 128 in bfloat16: 141 TFLOP/s at 512 tokens, 305 at 2,048, 422 at
8,192, 437 at 16,384; 16 prompts of 512 together reach 206. See benchmark/results/prefill_attention.json.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor
from torch.nn import functional

from ._attention import (
    LOG2_E,
    accumulate,
    check_layouts,
    load_rows,
    load_slots,
    locate,
    padded_batch,
    padded_head_dim,
)
from ._config import nearest
from ._launch import Launcher, let_next_start, wait_for_previous
from ._register import register
from ._triton import tl, triton


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    q,  # [BLOCK_M, BLOCK_D]
    positions,  # [BLOCK_M] of the queries
    table_row_ptr,
    k_head_ptr,
    v_head_ptr,
    begin,
    end,
    stride_k_slot,
    stride_v_slot,
    scale_log2,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Keys from `begin` to `end`: all of them seen by every query, or, where `MASKED`, up to its own position."""
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        slots = load_slots(table_row_ptr, keys, end, MASKED)
        k = load_rows(k_head_ptr, slots, stride_k_slot, keys < end, MASKED, HEAD_DIM, BLOCK_D)
        scores = tl.dot(q, k.T, input_precision="tf32x3")
        if MASKED:
            scores = tl.where((keys[None, :] <= positions[:, None]) & (keys < end)[None, :], scores, float("-inf"))
        v = load_rows(v_head_ptr, slots, stride_v_slot, keys < end, MASKED, HEAD_DIM, BLOCK_D)
        acc, row_max, row_sum = accumulate(scores, scale_log2, v, acc, row_max, row_sum)
    return acc, row_max, row_sum


@triton.jit(
    do_not_specialize=["batch"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_q_start_ptr", "b_kv_len_ptr"],
)
def prefill_attention_kernel(
    q_ptr,  # [tokens, heads, HEAD_DIM]
    k_cache_ptr,  # [slots, kv_heads, HEAD_DIM]
    v_cache_ptr,  # [slots, kv_heads, HEAD_DIM]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [batch]
    b_q_start_ptr,  # [batch + 1]
    b_kv_len_ptr,  # [batch]
    out_ptr,  # [tokens, heads, HEAD_DIM]
    stride_q_token,
    stride_q_head,
    stride_k_slot: tl.constexpr,
    stride_k_head: tl.constexpr,
    stride_v_slot: tl.constexpr,
    stride_v_head: tl.constexpr,
    stride_table_row,
    stride_out_token,
    stride_out_head,
    batch,
    scale_log2,  # scale times log2(e)
    GROUP: tl.constexpr,  # heads for each KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least HEAD_DIM and 16
    BLOCK_B: tl.constexpr,  # power of two, at least batch
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program attends with one head of BLOCK_M tokens of one request."""
    let_next_start(PDL)
    wait_for_previous(PDL)
    requests = tl.arange(0, BLOCK_B)
    here = requests < batch
    q_starts = tl.load(b_q_start_ptr + requests, mask=here, other=0)
    tiles = tl.cdiv(tl.load(b_q_start_ptr + 1 + requests, mask=here, other=0) - q_starts, BLOCK_M)
    request, tile = locate(tiles, tl.program_id(1))
    if request >= batch:
        return
    q_start = tl.load(b_q_start_ptr + request)
    q_len = tl.load(b_q_start_ptr + request + 1) - q_start
    kv_len = tl.load(b_kv_len_ptr + request)
    # The last tile has most to read: it starts first, so that short ones fill the end.
    first = (tl.cdiv(q_len, BLOCK_M) - 1 - tile) * BLOCK_M

    head = tl.program_id(0)
    rows = first + tl.arange(0, BLOCK_M)
    elements = tl.arange(0, BLOCK_D)
    stored = (rows < q_len)[:, None] & (elements < HEAD_DIM)[None, :]
    tokens = (q_start + rows).to(tl.int64)[:, None]
    q_tile_ptr = q_ptr + tokens * stride_q_token + head * stride_q_head + elements[None, :]
    q = tl.load(q_tile_ptr, mask=stored, other=0.0)

    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + request).to(tl.int64) * stride_table_row
    k_head_ptr = k_cache_ptr + (head // GROUP) * stride_k_head
    v_head_ptr = v_cache_ptr + (head // GROUP) * stride_v_head
    positions = kv_len - q_len + rows
    # Keys before `seen_by_all` need no mask, and from `end` on none is seen.
    seen_by_all = (kv_len - q_len + first + 1) // BLOCK_N * BLOCK_N
    end = tl.minimum(kv_len, kv_len - q_len + first + BLOCK_M)

    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, positions, table_row_ptr, k_head_ptr, v_head_ptr, 0, seen_by_all,
        stride_k_slot, stride_v_slot, scale_log2, False, HEAD_DIM, BLOCK_D, BLOCK_N,
    )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, positions, table_row_ptr, k_head_ptr, v_head_ptr, seen_by_all, end,
        stride_k_slot, stride_v_slot, scale_log2, True, HEAD_DIM, BLOCK_D, BLOCK_N,
    )  # fmt: skip
    out = (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + tokens * stride_out_token + head * stride_out_head + elements[None, :], out, mask=stored)


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
) -> None:
    """Triton implementation. `max_q_len` only chooses the tiles; nothing is read back from the device.

    Raises ValueError for layouts that the kernel does not read.
    """
    check_layouts("prefill_attention", q, k_cache, v_cache, slot_table, out)
    num_tokens, num_heads, head_dim = q.shape
    batch = b_row.shape[0]
    if num_tokens == 0:
        return
    block_d = padded_head_dim(head_dim)
    config = nearest("prefill_attention", head_dim=block_d, element_bytes=q.element_size(), q_len=max(1, max_q_len))
    # At most this many tiles: each request adds less than one that is not full.
    tiles = triton.cdiv(num_tokens, config["BLOCK_M"]) + batch
    _launch(
        (num_heads, tiles),
        (q, k_cache, v_cache, slot_table, b_row, b_q_start, b_kv_len, out),
        (*q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2], slot_table.stride(0), *out.stride()[:2]),
        (batch, scale * LOG2_E),
        GROUP=num_heads // k_cache.shape[1],
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_B=padded_batch(batch),
        **config,
    )


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
) -> None:
    """Torch implementation: one fused attention call a request, so nothing is padded."""
    starts, kv_lens, rows = b_q_start.tolist(), b_kv_len.tolist(), b_row.tolist()
    for row, start, end, kv_len in zip(rows, starts, starts[1:], kv_lens, strict=False):
        q_len = end - start
        if q_len == 0:
            continue
        slots = slot_table[row, :kv_len]
        k = k_cache.index_select(0, slots).transpose(0, 1)[None]
        v = v_cache.index_select(0, slots).transpose(0, 1)[None]
        mask = None
        if 1 < q_len < kv_len:
            mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
        attended = functional.scaled_dot_product_attention(
            q[start:end].transpose(0, 1)[None],
            k,
            v,
            attn_mask=mask,
            is_causal=q_len == kv_len > 1,
            scale=scale,
            enable_gqa=True,
        )
        out[start:end] = attended[0].transpose(0, 1)


prefill_attention = register(prefill_attention_torch, mutates=("out",), triton=prefill_attention_triton)
"""prefill_attention(q, k_cache, v_cache, slot_table, b_row, b_q_start, b_kv_len, max_q_len, scale, out)"""

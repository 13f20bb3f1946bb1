"""Scores by which an indexer chooses blocks of positions (MiniMax sparse attention, 2026).

    scores[t, h, b] = maximum over positions c of block b, c < kv_lens[t], of q[t, h] . cache[c]

The newest `local` blocks of a token have infinity, so that they are always chosen. Nothing is written for a token with
at most `top_k` blocks: there is nothing to choose.

Layouts: `q` `[T, heads, size]`, unit stride in the last dimension; position c of token t (`Decodes`) lies in slot
`slot_table[rows[t], c]` of `cache` `[slots, 1, size]`, which already holds the new keys; `scores` `[T, heads, blocks]`
float32, contiguous; `block` positions make a block. Table entries from `kv_lens[t]` on may be stale and are never
followed. A score does not depend, to the bit, on the other tokens or blocks.

Called once in a layer with an indexer for blocks of tokens whose scores fit into memory
(`layers/infer/block_sparse.py`). Bytes floor: sum(kv_lens) * size * element size for decodes. Operations: 2 * heads *
size for each pair of token and position. Thread blocks of a token share its context by turns. Not measured on a device
yet.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import padded_head_dim, shapes_error
from ..runtime.triton import tl, triton
from ._online_softmax import load_rows, load_slots
from .requests import Decodes

_WAVES = 4
"""Thread blocks of a launch, for each SM."""


@triton.jit(
    do_not_specialize=["top_k", "local", "stride_scores"],
    do_not_specialize_on_alignment=["q_ptr", "b_row_ptr", "b_kv_len_ptr", "scores_ptr"],
)
def block_scores_kernel(
    q_ptr,  # [tokens, HEADS, SIZE]
    cache_ptr,  # [slots, SIZE]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [tokens]
    b_kv_len_ptr,  # [tokens]
    scores_ptr,  # [tokens, HEADS, blocks] float32
    stride_q_token,
    stride_q_head,
    stride_slot,
    stride_table_row,
    top_k,
    local,
    stride_scores,
    HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr,  # power of two, at least HEADS and 16
    SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least SIZE and 16
    BLOCK: tl.constexpr,  # positions of a block
    BLOCK_N: tl.constexpr,  # power of two, at least BLOCK and 16
    PDL: tl.constexpr,
):
    """One thread block scores every so many blocks of the context of one token."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(1).to(tl.int64)
    kv_len = tl.load(b_kv_len_ptr + token)
    blocks = tl.cdiv(kv_len, BLOCK)
    if blocks <= top_k:
        return
    heads = tl.arange(0, BLOCK_H)
    elements = tl.arange(0, BLOCK_D)
    exists = heads < HEADS
    q_token_ptr = q_ptr + token * stride_q_token + heads[None, :] * stride_q_head
    q = tl.load(q_token_ptr + elements[:, None], mask=exists[None, :] & (elements < SIZE)[:, None], other=0.0)
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + token).to(tl.int64) * stride_table_row
    scores_head_ptr = scores_ptr + (token * HEADS + heads) * stride_scores
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        places = tl.arange(0, BLOCK_N)
        positions = block * BLOCK + places
        valid = (places < BLOCK) & (positions < kv_len)
        slots = load_slots(table_row_ptr, tl.where(places < BLOCK, positions, kv_len), kv_len, True)
        keys = load_rows(cache_ptr, slots, stride_slot, valid, True, SIZE, BLOCK_D)
        similar = tl.dot(keys, q, input_precision="tf32x3")
        scores = tl.max(tl.where(valid[:, None], similar, float("-inf")), axis=0)
        scores = tl.where(block >= blocks - local, float("inf"), scores)
        tl.store(scores_head_ptr + block, scores, mask=exists)


_launch = Launcher(block_scores_kernel, writes=("scores",))


def block_scores_triton(
    q: Tensor, cache: Tensor, batch: Decodes, block: int, top_k: int, local: int, scores: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    batch.check("block_scores")
    (tokens, heads, size), slot_table = q.shape, batch.slot_table
    if cache.shape[1:] != (1, size) or scores.shape[:2] != (tokens, heads):
        raise shapes_error("block_scores", q=q, cache=cache, scores=scores)
    if any(each.stride(-1) != 1 for each in (q, cache, slot_table)) or not scores.is_contiguous():
        raise ValueError("block_scores: the last dimension of every tensor must have stride 1")
    if tokens == 0:
        return
    programs = min(scores.shape[2], triton.cdiv(_WAVES * num_sms(q.device), tokens))
    _launch(
        (programs, tokens),
        (q, cache, slot_table, batch.rows, batch.kv_lens, scores),
        (*q.stride()[:2], cache.stride(0), slot_table.stride(0)),
        (top_k, local, scores.stride(1)),
        HEADS=heads,
        BLOCK_H=padded_head_dim(heads),
        SIZE=size,
        BLOCK_D=padded_head_dim(size),
        BLOCK=block,
        BLOCK_N=padded_head_dim(block),
        num_warps=4,
        num_stages=2,
    )


def block_scores_torch(
    q: Tensor, cache: Tensor, batch: Decodes, block: int, top_k: int, local: int, scores: Tensor
) -> None:
    """Torch implementation: each token alone, because torch's sums depend on the shape of a matmul."""
    for token, (row, kv_len) in enumerate(zip(batch.rows.tolist(), batch.kv_lens.tolist(), strict=True)):
        blocks = -(-kv_len // block)
        if blocks <= top_k:
            continue
        keys = cache[batch.slot_table[row, :kv_len], 0].float()
        similar = q[token].new_full((q.shape[1], blocks * block), float("-inf"), dtype=torch.float32)
        similar[:, :kv_len] = q[token].float() @ keys.T
        scores[token, :, :blocks] = similar.view(-1, blocks, block).amax(-1)
        scores[token, :, max(0, blocks - local) : blocks] = float("inf")


block_scores = register(block_scores_torch, mutates=("scores",), triton=block_scores_triton)

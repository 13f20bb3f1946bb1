"""Scores by which an indexer chooses positions (DeepSeek-V3.2, 2025).

    scores[t, c] = sum over heads of weights[t, h] * max(0, q[t, h] . cache[c])    for c < kv_lens[t]

Positive factors that are the same for all positions change no choice, so there are none. Nothing is written for a
token that attends to at most `top_k` positions: there is nothing to choose.

Layouts: `q` `[T, heads, size]` and `weights` `[T, heads]`, unit stride in the last dimension; position c of token t
(`Decodes`) lies in slot `slot_table[rows[t], c]` of `cache` `[slots, 1, size]`, which already holds the new keys;
`scores` `[T, positions]` float32, unit stride in the last dimension. Table entries from `kv_lens[t]` on may be stale
and are never followed. A score does not depend, to the bit, on the other tokens or positions.

Called once in a layer with an indexer for blocks of tokens whose scores fit into memory (`layers/infer/indexer.py`).
Bytes floor: sum(kv_lens) * (size * element size + 4) for decodes. Operations: 2 * heads * size for each pair of token
and position. Thread blocks of a token share its context by turns, so that a grid that follows from the longest context
starts none in vain. Not measured on a device yet.
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
"""Thread blocks of a launch, for each SM: about two waves, which balance contexts of different lengths."""


@triton.jit(
    do_not_specialize=["top_k", "stride_scores"],
    do_not_specialize_on_alignment=["b_row_ptr", "b_kv_len_ptr", "weights_ptr"],
)
def index_scores_kernel(
    q_ptr,  # [tokens, HEADS, SIZE]
    weights_ptr,  # [tokens, HEADS]
    cache_ptr,  # [slots, SIZE]
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [tokens]
    b_kv_len_ptr,  # [tokens]
    scores_ptr,  # [tokens, positions] float32
    stride_q_token,
    stride_q_head,
    stride_weights,
    stride_slot,
    stride_table_row,
    top_k,
    stride_scores,
    HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr,  # power of two, at least HEADS and 16
    SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least SIZE and 16
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block scores every so many tiles of the context of one token."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(1).to(tl.int64)
    kv_len = tl.load(b_kv_len_ptr + token)
    if kv_len <= top_k:
        return
    heads = tl.arange(0, BLOCK_H)
    elements = tl.arange(0, BLOCK_D)
    exists = heads < HEADS
    q_token_ptr = q_ptr + token * stride_q_token + heads[None, :] * stride_q_head
    q = tl.load(q_token_ptr + elements[:, None], mask=exists[None, :] & (elements < SIZE)[:, None], other=0.0)
    weights = tl.load(weights_ptr + token * stride_weights + heads, mask=exists, other=0.0).to(tl.float32)
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + token).to(tl.int64) * stride_table_row
    scores_row_ptr = scores_ptr + token * stride_scores
    stride = tl.num_programs(0) * BLOCK_N
    # Slots are loaded one step ahead, so that no step waits for memory twice.
    first = tl.program_id(0) * BLOCK_N
    slots = load_slots(table_row_ptr, first + tl.arange(0, BLOCK_N), kv_len, True)
    for start in range(first, kv_len, stride):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < kv_len
        next_slots = load_slots(table_row_ptr, positions + stride, kv_len, True)
        keys = load_rows(cache_ptr, slots, stride_slot, valid, True, SIZE, BLOCK_D)
        similar = tl.dot(keys, q, input_precision="tf32x3")
        scores = tl.sum(tl.maximum(similar, 0.0) * weights[None, :], axis=1)
        tl.store(scores_row_ptr + positions, scores, mask=valid)
        slots = next_slots


_launch = Launcher(index_scores_kernel, writes=("scores",))


def index_scores_triton(q: Tensor, weights: Tensor, cache: Tensor, batch: Decodes, top_k: int, scores: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    batch.check("index_scores")
    (tokens, heads, size), slot_table = q.shape, batch.slot_table
    if weights.shape != (tokens, heads) or cache.shape[1:] != (1, size) or scores.shape[0] != tokens:
        raise shapes_error("index_scores", q=q, weights=weights, cache=cache, scores=scores)
    if any(each.stride(-1) != 1 for each in (q, weights, cache, slot_table, scores)):
        raise ValueError("index_scores: the last dimension of every tensor must have stride 1")
    if tokens == 0:
        return
    block_n = 128 if q.element_size() == 2 else 64
    tiles = triton.cdiv(min(scores.shape[1], batch.max_kv_len), block_n)
    programs = min(max(1, tiles), triton.cdiv(_WAVES * num_sms(q.device), tokens))
    _launch(
        (programs, tokens),
        (q, weights, cache, slot_table, batch.rows, batch.kv_lens, scores),
        (*q.stride()[:2], weights.stride(0), cache.stride(0), slot_table.stride(0)),
        (top_k, scores.stride(0)),
        HEADS=heads,
        BLOCK_H=padded_head_dim(heads),
        SIZE=size,
        BLOCK_D=padded_head_dim(size),
        BLOCK_N=block_n,
        num_warps=4,
        num_stages=2,
    )


def index_scores_torch(q: Tensor, weights: Tensor, cache: Tensor, batch: Decodes, top_k: int, scores: Tensor) -> None:
    """Torch implementation: each token alone, because torch's sums depend on the shape of a matmul."""
    for token, (row, kv_len) in enumerate(zip(batch.rows.tolist(), batch.kv_lens.tolist(), strict=True)):
        if kv_len <= top_k:
            continue
        keys = cache[batch.slot_table[row, :kv_len], 0].float()
        similar = torch.relu(keys @ q[token].float().T)
        scores[token, :kv_len] = similar @ weights[token].float()


index_scores = register(index_scores_torch, mutates=("scores",), triton=index_scores_triton)

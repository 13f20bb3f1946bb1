"""The slots of the positions with the highest scores, for each token.

    slots[t, : min(kv_lens[t], k)] = slot_table[rows[t], p] for the k positions p below kv_lens[t] with the highest
                                     scores[t, p], in their order

Of equal scores the lowest positions are chosen. A token with at most k positions gets all of them, and its scores are
not read. So attention over the chosen slots is attention over a table of slots like any other, and equals attention
over the whole context where that has at most k positions. What follows in a row of `slots` is undefined.

Layouts: `scores` `[T, positions]` float32, unit stride in the last dimension; `slots` `[T, k]` int32, contiguous;
requests as in `Decodes`.

Kernels find the k-th highest score eight bits at a time (radix select): four times, each thread block makes a histogram
of the digits of its part of a token's scores, of those that begin as the k-th does. The last kernel writes the slots; a
thread block reads from the histograms how many are chosen before its part. Called once in a layer with an indexer.
Bytes floor: sum(kv_lens) * 4 + tokens * k * 4; what is read again is in L2. On an H200 one token with 32,768 positions
takes 26 us: docs/lab/2026-11-sparse-attention.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .requests import Decodes

_BLOCK = 1024
"""Positions at a time."""
_WAVES = 4
"""Thread blocks of a launch, for each SM."""
_PARTS = 32
"""The most parts of a context: each thread block adds up the histograms of all of them."""
_TILE = 8
"""Histograms at a time."""
_DIGITS = 256


@triton.jit
def _load_ordered(scores_row_ptr, positions, valid):
    """Scores as integers [BLOCK] uint32 in the same order; 0 and -0 are equal."""
    scores = tl.load(scores_row_ptr + positions, mask=valid, other=0.0)
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _part(kv_len, BLOCK: tl.constexpr):
    """Where the part of this thread block begins and ends, and the parts of the context: whole blocks, as many for
    each.
    """
    size = tl.cdiv(tl.cdiv(kv_len, BLOCK), tl.num_programs(0)) * BLOCK
    begin = tl.program_id(0) * size
    return begin, tl.minimum(begin + size, kv_len), tl.cdiv(kv_len, tl.maximum(size, 1))


@triton.jit
def _sum_histograms(counts_ptr, parts, TILE: tl.constexpr, DIGITS: tl.constexpr):
    """[DIGITS] int32: the sum of the histograms of the first `parts` parts, of one step."""
    digits = tl.arange(0, DIGITS)[None, :]
    counts = tl.zeros([TILE, DIGITS], dtype=tl.int32)
    for begin in range(0, parts, TILE):
        part = begin + tl.arange(0, TILE)[:, None]
        counts += tl.load(counts_ptr + part * DIGITS + digits, mask=part < parts, other=0)
    return tl.sum(counts, axis=0)


@triton.jit
def _begin_of_kth(
    begins_ptr, counts_ptr, parts, K: tl.constexpr, TILE: tl.constexpr, DIGITS: tl.constexpr, STEP: tl.constexpr
):
    """The first STEP digits of the K-th highest score, and how many scores that begin so are among the K highest. From
    what STEP - 1 digits gave, in `begins`, and the histograms of the step before, at `counts`.
    """
    found = tl.zeros([], dtype=tl.uint32)
    wanted = tl.full([], K, dtype=tl.int32)
    if STEP > 1:
        found = tl.load(begins_ptr + 2 * (STEP - 1)).to(tl.uint32, bitcast=True)
        wanted = tl.load(begins_ptr + 2 * (STEP - 1) + 1)
    if STEP > 0:
        counts = _sum_histograms(counts_ptr, parts, TILE, DIGITS)
        higher = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        is_it = (higher < wanted) & (higher + counts >= wanted)
        wanted -= tl.sum(tl.where(is_it, higher, 0), axis=0)
        found = (found << 8) | tl.sum(tl.where(is_it, tl.arange(0, DIGITS), 0), axis=0).to(tl.uint32)
    return found, wanted


@triton.jit(
    do_not_specialize=["stride_scores"],
    do_not_specialize_on_alignment=["scores_ptr", "b_kv_len_ptr"],
)
def top_slots_count_kernel(
    scores_ptr,  # [tokens, positions] float32
    b_kv_len_ptr,  # [tokens]
    begins_ptr,  # [tokens, 4, 2] int32
    counts_ptr,  # [4, tokens, parts, DIGITS] int32
    stride_scores,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    DIGITS: tl.constexpr,
    STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block counts digit STEP of the scores of its part that begin as the K-th highest does."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(1).to(tl.int64)
    kv_len = tl.load(b_kv_len_ptr + token)
    begin, end, parts = _part(kv_len, BLOCK)
    if (kv_len <= K) | (begin >= end):
        return
    scores_row_ptr = scores_ptr + token * stride_scores
    begins_row_ptr = begins_ptr + token * 8
    step_size = tl.num_programs(0) * DIGITS
    counts_row_ptr = counts_ptr + (STEP * tl.num_programs(1) + token) * step_size
    before_ptr = counts_row_ptr - tl.num_programs(1) * step_size
    found, wanted = _begin_of_kth(begins_row_ptr, before_ptr, parts, K, TILE, DIGITS, STEP)
    if begin == 0:
        tl.store(begins_row_ptr + 2 * STEP, found.to(tl.int32, bitcast=True))
        tl.store(begins_row_ptr + 2 * STEP + 1, wanted)
    counts = tl.zeros([DIGITS], dtype=tl.int32)
    for start in range(begin, end, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        counted = positions < end
        ordered = _load_ordered(scores_row_ptr, positions, counted)
        if STEP > 0:
            counted = counted & (ordered >> (32 - 8 * STEP) == found)
        digit = (ordered >> (24 - 8 * STEP)) & 255
        counts += tl.histogram(digit.to(tl.int32), DIGITS, mask=counted)
    tl.store(counts_row_ptr + tl.program_id(0) * DIGITS + tl.arange(0, DIGITS), counts)


@triton.jit(
    do_not_specialize=["stride_scores"],
    do_not_specialize_on_alignment=["scores_ptr", "b_row_ptr", "b_kv_len_ptr", "slots_ptr"],
)
def top_slots_kernel(
    scores_ptr,  # [tokens, positions] float32
    begins_ptr,  # [tokens, 4, 2] int32
    counts_ptr,  # [4, tokens, parts, DIGITS] int32
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [tokens]
    b_kv_len_ptr,  # [tokens]
    slots_ptr,  # [tokens, K]
    stride_table_row,
    stride_scores,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    DIGITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block writes what is chosen of its part of the context of one token."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(1).to(tl.int64)
    kv_len = tl.load(b_kv_len_ptr + token)
    begin, end, parts = _part(kv_len, BLOCK)
    table_row_ptr = slot_table_ptr + tl.load(b_row_ptr + token).to(tl.int64) * stride_table_row
    chosen_ptr = slots_ptr + token * K
    if kv_len <= K:
        for start in range(begin, end, BLOCK):
            positions = start + tl.arange(0, BLOCK)
            slots = tl.load(table_row_ptr + positions, mask=positions < end, other=0)
            tl.store(chosen_ptr + positions, slots, mask=positions < end)
        return
    if begin >= end:
        return
    scores_row_ptr = scores_ptr + token * stride_scores
    step_size = tl.num_programs(0) * DIGITS
    counts_row_ptr = counts_ptr + token * step_size
    last_ptr = counts_row_ptr + 3 * tl.num_programs(1) * step_size
    kth, wanted = _begin_of_kth(begins_ptr + token * 8, last_ptr, parts, K, TILE, DIGITS, 4)
    chosen = tl.zeros([], dtype=tl.int32)
    equal_seen = tl.zeros([], dtype=tl.int32)
    for step in tl.static_range(4):
        step_ptr = counts_row_ptr + step * tl.num_programs(1) * step_size
        counts = _sum_histograms(step_ptr, tl.program_id(0), TILE, DIGITS)
        digits = tl.arange(0, DIGITS).to(tl.uint32)
        digit = (kth >> (24 - 8 * step)) & 255
        chosen += tl.sum(tl.where(digits > digit, counts, 0), axis=0)
        if step == 3:
            equal_seen = tl.sum(tl.where(digits == digit, counts, 0), axis=0)
    chosen += tl.minimum(equal_seen, wanted)
    for start in range(begin, end, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        valid = positions < end
        ordered = _load_ordered(scores_row_ptr, positions, valid)
        is_equal = (valid & (ordered == kth)).to(tl.int32)
        equal_so_far = equal_seen + tl.cumsum(is_equal, axis=0)
        taken = (valid & ((ordered > kth) | ((is_equal == 1) & (equal_so_far <= wanted)))).to(tl.int32)
        places = chosen + tl.cumsum(taken, axis=0) - 1
        slots = tl.load(table_row_ptr + positions, mask=taken == 1, other=0)
        tl.store(chosen_ptr + places, slots, mask=taken == 1)
        chosen += tl.sum(taken, axis=0)
        equal_seen += tl.sum(is_equal, axis=0)


_launch_count = Launcher(top_slots_count_kernel, writes=("begins", "counts"))
_launch = Launcher(top_slots_kernel, writes=("slots",))


def top_slots_triton(scores: Tensor, batch: Decodes, slots: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    batch.check("top_slots")
    tokens, table = scores.shape[0], batch.slot_table
    if slots.shape[0] != tokens or batch.rows.shape != (tokens,):
        raise shapes_error("top_slots", scores=scores, rows=batch.rows, slots=slots)
    if scores.dtype != torch.float32 or scores.stride(1) != 1 or table.stride(1) != 1 or not slots.is_contiguous():
        raise ValueError("top_slots: scores must be float32 and rows contiguous")
    if tokens == 0:
        return
    k, blocks = slots.shape[1], max(1, triton.cdiv(min(scores.shape[1], batch.max_kv_len), _BLOCK))
    parts = min(blocks, _PARTS, triton.cdiv(_WAVES * num_sms(scores.device), tokens))
    begins = scores.new_empty(tokens, 4, 2, dtype=torch.int32)
    counts = scores.new_empty(4, tokens, parts, _DIGITS, dtype=torch.int32)
    grid, sizes = (parts, tokens), {"K": k, "BLOCK": _BLOCK, "TILE": _TILE, "DIGITS": _DIGITS, "num_warps": 4}
    for step in range(4):
        _launch_count(grid, (scores, batch.kv_lens, begins, counts), (), (scores.stride(0),), STEP=step, **sizes)
    tensors = (scores, begins, counts, table, batch.rows, batch.kv_lens, slots)
    _launch(grid, tensors, (table.stride(0),), (scores.stride(0),), **sizes)


def top_slots_torch(scores: Tensor, batch: Decodes, slots: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    k = slots.shape[1]
    for token, (row, kv_len) in enumerate(zip(batch.rows.tolist(), batch.kv_lens.tolist(), strict=True)):
        table = batch.slot_table[row, :kv_len]
        if kv_len > k:
            best = torch.sort(scores[token, :kv_len], descending=True, stable=True).indices[:k]
            table = table[best.sort().values]
        slots[token, : len(table)] = table


top_slots = register(top_slots_torch, mutates=("slots",), triton=top_slots_triton)

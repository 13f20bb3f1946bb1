"""The slots of the positions with the highest scores, for each token.

    slots[t, : min(kv_lens[t], k)] = slot_table[rows[t], p] for the k positions p below kv_lens[t] with the highest
                                     scores[t, p], in their order

Of equal scores the lowest positions are chosen. A token with at most k positions gets all of them, and its scores are
not read. So attention over the chosen slots is attention over a table of slots like any other, and equals attention
over the whole context where that has at most k positions. What follows in a row of `slots` is undefined.

Layouts: `scores` `[T, positions]` float32, unit stride in the last dimension; `slots` `[T, k]` int32, contiguous;
requests as in `Decodes`.

Kernels find the k-th highest score eight bits at a time (radix select): four times, thread blocks count the digits of
their parts of a token's scores, among those that begin as the k-th does. The last kernel writes the slots; a thread
block counts anew what is chosen before its part. Called once in a layer with an indexer. Bytes floor: sum(kv_lens) * 4
+ tokens * k * 4; what is read again is in L2. Not measured on a device yet.
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
_PARTS = 64
"""The most parts of a context: the last one counts what all before it have chosen."""
_DIGITS = 256


@triton.jit
def _load_ordered(scores_row_ptr, positions, valid):
    """Scores as integers [BLOCK] uint32 in the same order; 0 and -0 are equal."""
    scores = tl.load(scores_row_ptr + positions, mask=valid, other=0.0)
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _begin_of_kth(counts_ptr, K: tl.constexpr, DIGITS: tl.constexpr, STEPS: tl.constexpr):
    """The first STEPS digits of the K-th highest score, and how many scores that begin so are among the K highest."""
    digits = tl.arange(0, DIGITS)
    found = tl.zeros([], dtype=tl.uint32)
    wanted = tl.full([], K, dtype=tl.int32)
    for step in tl.static_range(STEPS):
        counts = tl.load(counts_ptr + step * DIGITS + digits)
        higher = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        is_it = (higher < wanted) & (higher + counts >= wanted)
        wanted -= tl.sum(tl.where(is_it, higher, 0), axis=0)
        found = (found << 8) | tl.sum(tl.where(is_it, digits, 0), axis=0).to(tl.uint32)
    return found, wanted


@triton.jit
def _part(kv_len, BLOCK: tl.constexpr):
    """Where the part of this thread block begins and ends: whole blocks, as many for each."""
    size = tl.cdiv(tl.cdiv(kv_len, BLOCK), tl.num_programs(0)) * BLOCK
    begin = tl.program_id(0) * size
    return begin, tl.minimum(begin + size, kv_len)


@triton.jit(
    do_not_specialize=["stride_scores"],
    do_not_specialize_on_alignment=["scores_ptr", "b_kv_len_ptr"],
)
def top_slots_count_kernel(
    scores_ptr,  # [tokens, positions] float32
    b_kv_len_ptr,  # [tokens]
    counts_ptr,  # [tokens, 4, DIGITS] int32, zero for this step
    stride_scores,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    DIGITS: tl.constexpr,
    STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block counts digit STEP of the scores of its part that begin as the K-th highest does."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(1).to(tl.int64)
    kv_len = tl.load(b_kv_len_ptr + token)
    begin, end = _part(kv_len, BLOCK)
    if (kv_len <= K) | (begin >= end):
        return
    scores_row_ptr = scores_ptr + token * stride_scores
    counts_row_ptr = counts_ptr + token * 4 * DIGITS
    found, _ = _begin_of_kth(counts_row_ptr, K, DIGITS, STEP)
    counts = tl.zeros([DIGITS], dtype=tl.int32)
    for start in range(begin, end, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        counted = positions < end
        ordered = _load_ordered(scores_row_ptr, positions, counted)
        if STEP > 0:
            counted = counted & (ordered >> (32 - 8 * STEP) == found)
        digit = (ordered >> (24 - 8 * STEP)) & 255
        counts += tl.histogram(digit.to(tl.int32), DIGITS, mask=counted)
    tl.atomic_add(counts_row_ptr + STEP * DIGITS + tl.arange(0, DIGITS), counts, mask=counts > 0, sem="relaxed")


@triton.jit(
    do_not_specialize=["stride_scores"],
    do_not_specialize_on_alignment=["scores_ptr", "b_row_ptr", "b_kv_len_ptr", "slots_ptr"],
)
def top_slots_kernel(
    scores_ptr,  # [tokens, positions] float32
    counts_ptr,  # [tokens, 4, DIGITS] int32
    slot_table_ptr,  # [rows, positions]
    b_row_ptr,  # [tokens]
    b_kv_len_ptr,  # [tokens]
    slots_ptr,  # [tokens, K]
    stride_table_row,
    stride_scores,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,  # positions at a time while it counts
    DIGITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block writes what is chosen of its part of the context of one token."""
    launch_dependents(PDL)
    wait_for_previous(PDL)
    token = tl.program_id(1).to(tl.int64)
    kv_len = tl.load(b_kv_len_ptr + token)
    begin, end = _part(kv_len, BLOCK)
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
    kth, wanted = _begin_of_kth(counts_ptr + token * 4 * DIGITS, K, DIGITS, 4)
    higher_before = tl.zeros([WIDE], dtype=tl.int32)
    equal_before = tl.zeros([WIDE], dtype=tl.int32)
    for start in range(0, begin, WIDE):
        positions = start + tl.arange(0, WIDE)
        valid = positions < begin
        ordered = _load_ordered(scores_row_ptr, positions, valid)
        higher_before += (valid & (ordered > kth)).to(tl.int32)
        equal_before += (valid & (ordered == kth)).to(tl.int32)
    equal_seen = tl.sum(equal_before, axis=0)
    chosen = tl.sum(higher_before, axis=0) + tl.minimum(equal_seen, wanted)
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


_launch_count = Launcher(top_slots_count_kernel, writes=("counts",))
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
    grid = min(blocks, _PARTS, triton.cdiv(_WAVES * num_sms(scores.device), tokens)), tokens
    counts = scores.new_zeros(tokens, 4, _DIGITS, dtype=torch.int32)
    sizes = {"K": k, "BLOCK": _BLOCK, "DIGITS": _DIGITS, "num_warps": 4}
    for step in range(4):
        _launch_count(grid, (scores, batch.kv_lens, counts), (), (scores.stride(0),), STEP=step, **sizes)
    tensors = (scores, counts, table, batch.rows, batch.kv_lens, slots)
    _launch(grid, tensors, (table.stride(0),), (scores.stride(0),), WIDE=4 * _BLOCK, **sizes)


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

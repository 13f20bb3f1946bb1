"""Top-n alternatives of a row with their log-probabilities, for reporting, with every tie of the n-th.

Layouts: `values.py`, `bounds` as in `survivors`; `choose` wrote `valid` and `log_total` of `sampled`. Written:
`top_ids` and `top_logprobs`, best first, ties by id, and `num_top`, 0 for rows that want none or are not valid. Of more
than MAX_TOP, the ties of the highest ids are left out.

Called once a step. Raises ValueError for layouts that the kernel does not read. Bytes floor: N * vocab * 4 for the rows
that want alternatives.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from ._search import CANDIDATES, NUM_WARPS, TILE, fresh, load_tile, search
from .columns import (
    FLOATS,
    INTS,
    MAX_TOP,
    TEMPERATURE,
    TOP_N,
    TOPS,
    Flags,
    Floats,
    Ints,
    batch_indices,
    distance,
    distance_below,
    flags_of,
    row_best,
    survives,
)
from .values import SampledTokens, SamplingBatch, SamplingColumns, SplitStatistics


@triton.jit
def _nth_split(best_ptr, splits, n, best, temperature, BLOCK_S: tl.constexpr):
    """The n-th smallest u among the best tokens of the splits: unless filtered out, at least n tokens are as good."""
    split = tl.arange(0, BLOCK_S)
    u = distance_below(tl.load(best_ptr + split, mask=split < splits, other=float("-inf")), best, temperature)
    before = (u[None, :] < u[:, None]) | ((u[None, :] == u[:, None]) & (split[None, :] < split[:, None]))
    nth = tl.sum(before.to(tl.int32), axis=1) == tl.minimum(n, splits) - 1
    return tl.minimum(tl.sum(tl.where(nth, u, 0.0), axis=0), 1e30)


@triton.jit
def _collect(scores_ptr, vocab, row, nth, better, ids_ptr, u_ptr, TILE: tl.constexpr):
    """Stores the tokens up to `nth`, unsorted: `better` ones below it, then ties in the order of their ids. Returns
    their number, at most TOPS.
    """
    num_better = 0
    num_ties = 0
    for start in range(0, vocab, TILE):
        ids, u, left = load_tile(scores_ptr, start, vocab, row, TILE)
        below = (left & (u < nth)).to(tl.int32)
        equal = (left & (u == nth)).to(tl.int32)
        place = tl.where(
            below != 0,
            num_better + tl.cumsum(below, axis=0) - 1,
            better + num_ties + tl.cumsum(equal, axis=0) - 1,
        )
        wanted = ((below + equal) != 0) & (place < TOPS)
        tl.store(ids_ptr + place, ids, mask=wanted)
        tl.store(u_ptr + place, u, mask=wanted)
        num_better += tl.sum(below, axis=0)
        num_ties += tl.sum(equal, axis=0)
    return tl.minimum(num_better + num_ties, TOPS)


@triton.jit(
    do_not_specialize_on_alignment=[
        "best_ptr", "rows_ptr", "valid_ptr", "log_total_ptr", "top_ids_ptr", "top_logprobs_ptr", "num_top_ptr",
    ]
)  # fmt: skip
def top_tokens_kernel(
    scores_ptr,  # [N, vocab] float32
    best_ptr,  # [N, splits]
    bounds_ptr,  # [N, 4]
    rows_ptr,  # [N]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    valid_ptr,  # [N]
    log_total_ptr,  # [N]
    top_ids_ptr,  # [N, TOPS]
    top_logprobs_ptr,  # [N, TOPS]
    num_top_ptr,  # [N]
    candidates_ptr,  # [N, CANDIDATES] float32
    counter_ptr,  # [N] int32
    vocab,
    splits,
    stride_scores,
    stride_valid,
    stride_log_total,
    stride_top_ids,
    stride_top_logprobs,
    stride_num_top,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least splits
    PDL: tl.constexpr,
):
    """One thread block reports one row."""
    launch_dependents(PDL)
    batch_index = tl.program_id(0).to(tl.int64)
    # As early as what `load_flags` reads.
    row = tl.load(rows_ptr + batch_index)
    n = tl.load(ints_ptr + row * INTS + TOP_N)
    wait_for_previous(PDL)
    valid = tl.load(valid_ptr + batch_index * stride_valid)
    number = 0
    if (n > 0) & (valid > 0):
        best, _ = row_best(best_ptr + batch_index * splits, splits, BLOCK_S)
        bound_ptr = bounds_ptr + batch_index * 4
        state = (
            best,
            tl.load(floats_ptr + row * FLOATS + TEMPERATURE),
            tl.load(bound_ptr),
            tl.load(bound_ptr + 1),
            tl.load(bound_ptr + 2),
            tl.load(bound_ptr + 3),
        )
        scores_ptr += batch_index * stride_scores
        candidates_ptr += batch_index * CANDIDATES
        target = n.to(tl.int64)
        key, missing, _ = search(
            scores_ptr,
            vocab,
            state,
            0.0,
            target,
            fresh(),
            0,
            False,
            _nth_split(best_ptr + batch_index * splits, splits, n, state[0], state[1], BLOCK_S),
            candidates_ptr,
            counter_ptr + batch_index,
            False,
            False,
            TILE,
            CANDIDATES,
        )
        ids_ptr = top_ids_ptr + batch_index * stride_top_ids
        logprobs_ptr = top_logprobs_ptr + batch_index * stride_top_logprobs
        better = (target - missing).to(tl.int32)
        number = _collect(
            scores_ptr, vocab, state, key.to(tl.float32, bitcast=True), better, ids_ptr, logprobs_ptr, TILE
        )
        tl.debug_barrier()
        place = tl.arange(0, TOPS)
        ids = tl.load(ids_ptr + place, mask=place < number, other=2147483647)
        u = tl.load(logprobs_ptr + place, mask=place < number, other=float("inf"))
        tl.debug_barrier()
        # The place of a token is the number of those before it.
        before = (u[None, :] < u[:, None]) | ((u[None, :] == u[:, None]) & (ids[None, :] < ids[:, None]))
        rank = tl.sum(before.to(tl.int32), axis=1)
        tl.store(ids_ptr + rank, ids, mask=place < number)
        tl.store(logprobs_ptr + rank, -u - tl.load(log_total_ptr + batch_index * stride_log_total), mask=place < number)
    tl.store(num_top_ptr + batch_index * stride_num_top, number)


_launch = Launcher(
    top_tokens_kernel,
    writes=("top_ids", "top_logprobs", "num_top", "candidates", "counter"),
    reads_early=("rows", "ints"),
)


def top_tokens_triton(
    batch: SamplingBatch,
    columns: SamplingColumns,
    statistics: SplitStatistics,
    bounds: Tensor,
    sampled: SampledTokens,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    scores, best = batch.scores, statistics.best
    valid, log_total, num_top = sampled.valid, sampled.log_total, sampled.num_top
    top_ids, top_logprobs = sampled.top_ids, sampled.top_logprobs
    number, vocab = scores.shape
    if not top_ids.shape == top_logprobs.shape == (number, MAX_TOP):
        raise ValueError(f"top_tokens: top_ids and top_logprobs must have the shape [{number}, {MAX_TOP}]")
    if not scores.stride(1) == top_ids.stride(1) == top_logprobs.stride(1) == 1:
        raise ValueError("top_tokens: the last dimension of every matrix must have stride 1")
    if number == 0:
        return
    candidates = torch.empty(number, CANDIDATES, dtype=torch.float32, device=scores.device)
    counter = torch.empty(number, dtype=torch.int32, device=scores.device)
    _launch(
        (number,),
        (
            scores, best, bounds, batch.rows, columns.floats, columns.ints, valid, log_total, top_ids, top_logprobs,
            num_top, candidates, counter,
        ),
        (
            vocab, best.shape[1], scores.stride(0), valid.stride(0), log_total.stride(0), top_ids.stride(0),
            top_logprobs.stride(0), num_top.stride(0),
        ),
        TILE=TILE,
        CANDIDATES=CANDIDATES,
        BLOCK_S=triton.next_power_of_2(best.shape[1]),
        num_warps=NUM_WARPS,
    )  # fmt: skip


def top_tokens_torch(
    batch: SamplingBatch,
    columns: SamplingColumns,
    statistics: SplitStatistics,
    bounds: Tensor,
    sampled: SampledTokens,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    scores, rows, floats, ints = batch.scores, batch.rows, columns.floats, columns.ints
    sampled.num_top.zero_()
    for i in batch_indices(flags_of(ints, rows), Flags.TOP):
        if sampled.valid[i] <= 0:
            continue
        row, best = rows[i], statistics.best[i].amax()
        u = distance(scores[i : i + 1], best.unsqueeze(0), floats[row, Floats.TEMPERATURE].unsqueeze(0))
        kept = u.masked_fill_(~survives(u, bounds[i : i + 1]), torch.inf)[0]
        nth = kept.topk(min(int(ints[row, Ints.TOP_N]), kept.shape[0]), largest=False).values[-1]
        ids = ((kept <= nth) & kept.isfinite()).nonzero().squeeze(1)
        ids = ids[kept[ids].argsort(stable=True)][:MAX_TOP]
        sampled.num_top[i] = ids.shape[0]
        sampled.top_ids[i, : ids.shape[0]] = ids.to(torch.int32)
        sampled.top_logprobs[i, : ids.shape[0]] = -kept[ids] - sampled.log_total[i]


top_tokens = by_device(top_tokens_torch, top_tokens_triton)

"""Top-k, top-p, typical-p and min-p filters: four bounds a row in place of a filtered copy of its scores.

In this order, each on the renormalised survivors of the one before, and each leaving at least one token. With u as in
`columns.py`:

    top-k      the k smallest u, and whatever equals the k-th
    top-p      the fewest tokens of smallest u whose probability reaches p; of several that equal the last one, those of
               the highest ids (Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020)
    typical-p  the tokens of smallest |u - mean(u)| until their probability reaches the mass, and whatever equals the
               last: |u - mean(u)| is |-log p - H|, the distance from the entropy (Meister et al., "Locally Typical
               Sampling", TACL 2023)
    min-p      p >= min_p * max(p) (Nguyen et al., "Turning Up the Heat", 2024)

Layouts: `values.py`, scores of the whole vocabulary. `bounds` float32 `[N, 4]`, contiguous: (largest, first_id, centre,
radius) says that v survives if

    (u < largest, or u = largest and v >= first_id) and |u - centre| <= radius

Rows without a filter get bounds that keep every token that is not excluded.

Called once a step. Raises ValueError for layouts that the kernel does not read. Bytes floor: N * vocab * 4 for the rows
with a filter. On an H200 a whole sampling step of 64 rows with top-p 0.9 over 128,256 ids takes 165 to 298 us, the less
the more peaked they are. Measurements: docs/lab/2026-11-sampling-and-readback.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import by_device
from ..runtime.triton import tl, triton
from ._filter_bounds import smallest, top_k_bound, top_p_bounds, typical_p_bounds
from ._narrow import ROUNDS, STATE, is_wide, load_state, narrow, next_state
from ._search import CANDIDATES, NUM_WARPS, TILE, fresh
from .columns import (
    FLOATS,
    HAS_FILTERS,
    INTS,
    LARGEST,
    MIN_P,
    SMALLEST,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TYPICAL_P,
    Flags,
    Floats,
    Ints,
    batch_indices,
    distance,
    flags_of,
    load_flags,
    mass,
    row_best,
    share,
    survives,
)
from .values import SamplingBatch, SamplingColumns, SplitStatistics

_LARGEST, _ROUNDS, _STATE = tl.constexpr(LARGEST), tl.constexpr(ROUNDS), tl.constexpr(STATE)


@triton.jit
def _narrowed(
    states_ptr,
    numbers_ptr,
    masses_ptr,
    batch_index,
    splits,
    top_k,
    top_p,
    vocab,
    CANDIDATES: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """State of the first filter's search after `narrow`, and whether its candidates are gathered."""
    last = (_ROUNDS - 1) * tl.num_programs(0) + batch_index
    state = next_state(
        states_ptr + last * _STATE,
        numbers_ptr + last * splits * 8,
        masses_ptr + last * splits * 8,
        splits,
        top_k,
        top_p,
        vocab,
        False,
        CANDIDATES,
        BLOCK_S,
    )
    return state, not is_wide(load_state(states_ptr + last * _STATE), CANDIDATES)


@triton.jit
def _bounds_of(
    scores_ptr,  # this and the others: of the row alone
    floats_ptr,
    ints_ptr,
    best,
    vocab,
    narrowed,  # state of the first filter's search after `narrow`
    gathered,
    scratch,  # (candidates, counter)
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """(largest, first_id, centre, radius) of a row with filters: one after the other, each on the survivors so far."""
    largest = tl.full([], _LARGEST, dtype=tl.float32)
    first_id = tl.full([], 0.0, dtype=tl.float32)
    centre = tl.full([], 0.0, dtype=tl.float32)
    radius = tl.full([], float("inf"), dtype=tl.float32)
    temperature = tl.load(floats_ptr + TEMPERATURE)
    rounds = _ROUNDS
    top_k = tl.load(ints_ptr + TOP_K)
    if top_k > 0:
        state = (best, temperature, largest, first_id, centre, radius)
        largest = top_k_bound(scores_ptr, vocab, state, top_k, narrowed, rounds, gathered, scratch, TILE, CANDIDATES)
        narrowed = fresh()
        rounds = 0
        gathered = False
    top_p = tl.load(floats_ptr + TOP_P)
    if top_p < 1.0:
        state = (best, temperature, largest, first_id, centre, radius)
        largest, first_id = top_p_bounds(
            scores_ptr, vocab, state, top_p, narrowed, rounds, gathered, scratch, TILE, CANDIDATES
        )
    typical_p = tl.load(floats_ptr + TYPICAL_P)
    if typical_p < 1.0:
        state = (best, temperature, largest, first_id, centre, radius)
        centre, radius = typical_p_bounds(scores_ptr, vocab, state, typical_p, scratch, TILE, CANDIDATES)
    min_p = tl.load(floats_ptr + MIN_P)
    if min_p > 0.0:
        limit = -tl.log(tl.maximum(min_p, 1.1754943508222875e-38))
        if typical_p < 1.0:
            state = (best, temperature, largest, first_id, centre, radius)
            limit += smallest(scores_ptr, vocab, state, TILE)
        if limit < largest:
            largest = limit
            first_id = 0.0
    return largest, first_id, centre, radius


@triton.jit(do_not_specialize_on_alignment=["best_ptr", "rows_ptr"])
def survivors_kernel(
    scores_ptr,  # [N, vocab] float32
    best_ptr,  # [N, splits]
    rows_ptr,  # [N]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    bounds_ptr,  # [N, 4]
    states_ptr,  # this and the next two as in `_narrow.py`
    numbers_ptr,
    masses_ptr,
    candidates_ptr,  # [N, CANDIDATES] float32
    counter_ptr,  # [N] int32
    vocab,
    splits,
    stride_scores,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least splits
    PDL: tl.constexpr,
):
    """One thread block finds the bounds of one row."""
    launch_dependents(PDL)
    batch_index = tl.program_id(0).to(tl.int64)
    row, flags = load_flags(rows_ptr, ints_ptr, batch_index)
    wait_for_previous(PDL)
    floats_ptr += row * FLOATS
    ints_ptr += row * INTS
    largest = tl.full([], _LARGEST, dtype=tl.float32)
    first_id = tl.full([], 0.0, dtype=tl.float32)
    centre = tl.full([], 0.0, dtype=tl.float32)
    radius = tl.full([], float("inf"), dtype=tl.float32)
    if (flags & HAS_FILTERS) != 0:
        best, sound = row_best(best_ptr + batch_index * splits, splits, BLOCK_S)
        if sound:
            top_k = tl.load(ints_ptr + TOP_K)
            top_p = tl.load(floats_ptr + TOP_P)
            narrowed = fresh()
            gathered = False
            if (top_k > 0) | (top_p < 1.0):
                narrowed, gathered = _narrowed(
                    states_ptr, numbers_ptr, masses_ptr, batch_index, splits, top_k, top_p, vocab, CANDIDATES, BLOCK_S
                )
            largest, first_id, centre, radius = _bounds_of(
                scores_ptr + batch_index * stride_scores,
                floats_ptr,
                ints_ptr,
                best,
                vocab,
                narrowed,
                gathered,
                (candidates_ptr + batch_index * CANDIDATES, counter_ptr + batch_index),
                TILE,
                CANDIDATES,
            )
    bound_ptr = bounds_ptr + batch_index * 4
    tl.store(bound_ptr, largest)
    tl.store(bound_ptr + 1, first_id)
    tl.store(bound_ptr + 2, centre)
    tl.store(bound_ptr + 3, radius)


_launch = Launcher(survivors_kernel, writes=("bounds", "candidates", "counter"), reads_early=("rows", "ints"))


def survivors_triton(
    batch: SamplingBatch, columns: SamplingColumns, statistics: SplitStatistics, bounds: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    scores, best = batch.scores, statistics.best
    number, vocab = scores.shape
    if best.shape[0] != number or bounds.shape != (number, 4):
        raise ValueError("survivors: shapes of scores, best, bounds do not fit")
    if scores.stride(1) != 1 or not bounds.is_contiguous():
        raise ValueError("survivors: scores must have stride 1 in the last dimension, and bounds be contiguous")
    if number == 0:
        return
    candidates = torch.empty(number, CANDIDATES, dtype=torch.float32, device=scores.device)
    counter = torch.empty(number, dtype=torch.int32, device=scores.device)
    states, numbers, masses = narrow(batch, columns, statistics, candidates, counter)
    _launch(
        (number,),
        (
            scores, best, batch.rows, columns.floats, columns.ints, bounds, states, numbers, masses, candidates,
            counter,
        ),
        (vocab, best.shape[1], scores.stride(0)),
        TILE=TILE,
        CANDIDATES=CANDIDATES,
        BLOCK_S=triton.next_power_of_2(best.shape[1]),
        num_warps=NUM_WARPS,
    )  # fmt: skip


_ALL = torch.tensor([LARGEST, 0.0, 0.0, torch.inf])
"""Bounds that keep every token."""


def survivors_torch(
    batch: SamplingBatch, columns: SamplingColumns, statistics: SplitStatistics, bounds: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Sorts."""
    scores, rows, floats, ints = batch.scores, batch.rows, columns.floats, columns.ints
    bounds.copy_(_ALL)
    filtered = batch_indices(flags_of(ints, rows), Flags.FILTERS)
    if not filtered:
        return
    highest = statistics.best.amax(dim=1)
    chosen = torch.tensor(filtered, device=scores.device)
    chosen = chosen[highest[chosen].isfinite()]
    parameters, found = floats[rows[chosen]], bounds[chosen]
    u = distance(scores[chosen], highest[chosen], parameters[:, Floats.TEMPERATURE])
    _top_k(u, ints[rows[chosen], Ints.TOP_K].to(torch.int64), found)
    _top_p(u, parameters[:, Floats.TOP_P], found)
    _typical_p(u, parameters[:, Floats.TYPICAL_P], found)
    _min_p(u, parameters[:, Floats.MIN_P], found)
    bounds[chosen] = found


def _top_k(u: Tensor, k: Tensor, bounds: Tensor) -> None:
    wanted = k > 0
    if not wanted.any():
        return
    k = k.clamp(1, u.shape[1])
    smallest = u.topk(int(k[wanted].max()), dim=1, largest=False).values
    last = smallest.gather(1, k.clamp(max=smallest.shape[1]).unsqueeze(1) - 1).squeeze(1)
    bounds[:, 0] = torch.where(wanted, last.clamp(max=LARGEST), bounds[:, 0])


def _top_p(u: Tensor, p: Tensor, bounds: Tensor) -> None:
    for i in (p < 1).nonzero().squeeze(1).tolist():
        left, weights = _ascending(u[i], survives(u[i : i + 1], bounds[i : i + 1])[0])
        cumulative = weights.cumsum(0)
        target = share(cumulative[-1], p[i])
        last = left[torch.searchsorted(cumulative, target)]
        before = weights[left < last].sum()
        weight = mass(last)
        kept = (target - before + weight - 1) // weight
        bounds[i, 0] = last
        equal = (u[i] == last).nonzero().squeeze(1)
        bounds[i, 1] = equal[-int(kept)] if kept < equal.shape[0] else 0


def _typical_p(u: Tensor, typical_p: Tensor, bounds: Tensor) -> None:
    for i in (typical_p < 1).nonzero().squeeze(1).tolist():
        left = u[i][survives(u[i : i + 1], bounds[i : i + 1])[0]]
        weights = mass(left)
        centre = ((weights.double() * left).sum() / weights.sum()).float()
        distances, order = (left - centre).abs().sort()
        cumulative = weights[order].cumsum(0)
        bounds[i, 2] = centre
        bounds[i, 3] = distances[torch.searchsorted(cumulative, share(cumulative[-1], typical_p[i]))]


def _min_p(u: Tensor, min_p: Tensor, bounds: Tensor) -> None:
    wanted = min_p > 0
    if not wanted.any():
        return
    smallest = u.masked_fill(~survives(u, bounds), torch.inf).amin(dim=1)
    limit = smallest - min_p.clamp(min=SMALLEST).log()
    tighter = wanted & (limit < bounds[:, 0])
    bounds[:, 0] = torch.where(tighter, limit, bounds[:, 0])
    bounds[:, 1] = torch.where(tighter, 0.0, bounds[:, 1])


def _ascending(u: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The survivors' u in ascending order with their masses."""
    left = u[kept].sort().values
    return left, mass(left)


survivors = by_device(survivors_torch, survivors_triton)

"""Multi-pivot narrowing: the first rounds of the search of `_search.py`, one launch each, by many thread blocks a row.

A round cuts the bracket of every row by seven pivots. A thread block measures one split of a row, and the next round
adds the splits up, so what it finds depends on the row alone. The first pivots follow from the row's spread log(vocab /
sum of exp(-u)), which for normally distributed scores is about where most of them lie; later ones cut the bracket into
eight equal intervals. Three rounds leave few enough tokens for registers, except in extreme rows. The round after that
gathers the tokens in the bracket. Rows that are narrow enough, or have no filter, leave a round at once.
Measurements: docs/lab/2026-11-sampling-and-readback.md.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.device import num_sms
from ..runtime.launch import Launcher, compiling_only, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from .columns import (
    FLOATS,
    HAS_FILTERS,
    INTS,
    LARGEST,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    distance_below,
    integer_mass,
    integer_share,
    load_flags,
    row_best,
    split_size,
)
from .values import SamplingBatch, SamplingColumns, SplitStatistics

ROUNDS = 4
STATE = 16
"""int64 words of a row's state in one round: low, high, number_low, number_high, mass_low, goal, then from word 8 on
the eight pivots."""
_PIVOTS = tl.constexpr(8)
_STATE = tl.constexpr(STATE)
_INFINITY = tl.constexpr(0x7F800000)
_LARGEST = tl.constexpr(LARGEST)
_SUB, _GATHERED = 256, 1024
_ROWS, _PROGRAMS = 4, 3
"""Rows that share a thread block where rows are many, and least thread blocks an SM then."""


@triton.jit
def _at(values, index, SIZE: tl.constexpr):
    """Element `index` of a vector, 0 outside."""
    return tl.sum(tl.where(tl.arange(0, SIZE) == index, values, 0), axis=0)


@triton.jit
def load_state(state_ptr):
    """Bracket and sums of a row in one round, as `STATE` lists them."""
    return (
        tl.load(state_ptr).to(tl.int32),
        tl.load(state_ptr + 1).to(tl.int32),
        tl.load(state_ptr + 2).to(tl.int32),
        tl.load(state_ptr + 3).to(tl.int32),
        tl.load(state_ptr + 4),
        tl.load(state_ptr + 5),
    )


@triton.jit
def is_wide(state, CANDIDATES: tl.constexpr):
    """Whether this bracket is still too wide to be gathered."""
    low, high, number_low, number_high, _, _ = state
    return (high - low > 1) & (number_high - number_low > CANDIDATES)


@triton.jit
def next_state(
    state_ptr,  # the row's state in the round that measured
    numbers_ptr,  # the row's [splits, _PIVOTS] int32 of that round
    masses_ptr,  # likewise int64
    splits,
    top_k,
    top_p,
    vocab,
    FIRST: tl.constexpr,  # whether that was round 0
    CANDIDATES: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """State after a round: the interval of the bracket that reaches the goal."""
    state = load_state(state_ptr)
    if is_wide(state, CANDIDATES):
        low, high, number_low, number_high, mass_low, goal = state
        index = tl.arange(0, _PIVOTS)
        pivots = tl.load(state_ptr + 8 + index).to(tl.int32)
        split = tl.arange(0, BLOCK_S)
        place = split[:, None] * _PIVOTS + index[None, :]
        measured = (split < splits)[:, None]
        numbers = tl.sum(tl.load(numbers_ptr + place, mask=measured, other=0), axis=0)
        masses = tl.sum(tl.load(masses_ptr + place, mask=measured, other=0), axis=0)
        if FIRST:
            # The last pivot is above every surviving token.
            number_high = _at(numbers, _PIVOTS - 1, _PIVOTS)
            if top_k > 0:
                goal = tl.minimum(top_k, vocab).to(tl.int64)
            else:
                goal = integer_share(_at(masses, _PIVOTS - 1, _PIVOTS), top_p)
        reached = tl.where(top_k > 0, numbers.to(tl.int64), masses)
        interval = tl.sum((reached < goal).to(tl.int32), axis=0)
        low = tl.where(interval > 0, _at(pivots, interval - 1, _PIVOTS), low)
        high = tl.where(interval < _PIVOTS, _at(pivots, interval, _PIVOTS), high)
        number_low = tl.where(interval > 0, _at(numbers, interval - 1, _PIVOTS), number_low)
        number_high = tl.where(interval < _PIVOTS, _at(numbers, interval, _PIVOTS), number_high)
        mass_low = tl.where(interval > 0, _at(masses, interval - 1, _PIVOTS), mass_low)
        state = (low, high, number_low, number_high, mass_low, goal)
    return state


@triton.jit
def _first_pivots(best_ptr, total_ptr, splits, best, temperature, vocab, BLOCK_S: tl.constexpr):
    """Pivots at quarters of the row's spread, and a last one above every surviving token."""
    split = tl.arange(0, BLOCK_S)
    u = distance_below(tl.load(best_ptr + split, mask=split < splits, other=float("-inf")), best, temperature)
    total = tl.sum(tl.load(total_ptr + split, mask=split < splits, other=0.0) * tl.exp(-u), axis=0)
    spread = tl.maximum(tl.log(vocab.to(tl.float32) / total), 0.0)
    index = tl.arange(0, _PIVOTS)
    pivots = (0.25 * spread * (index + 1).to(tl.float32)).to(tl.int32, bitcast=True)
    return tl.where(index < _PIVOTS - 1, pivots, _INFINITY - 1)


@triton.jit
def _equal_pivots(low, high):
    """Pivots at eighths of the bracket, ascending, above `low`; the last is `high`."""
    index = tl.arange(0, _PIVOTS)
    first = tl.maximum(low, 0).to(tl.float32, bitcast=True)
    eighth = 0.125 * (high.to(tl.float32, bitcast=True) - first)
    by_value = (first + eighth * (index + 1).to(tl.float32)).to(tl.int32, bitcast=True)
    by_key = low + (high - low) // _PIVOTS * (index + 1)
    pivots = tl.where(high < _INFINITY, by_value, by_key)
    pivots = tl.minimum(tl.maximum(pivots, low + 1), high)
    return tl.where(index < _PIVOTS - 1, pivots, high)


@triton.jit
def _measure(scores_ptr, first_id, vocab, best, temperature, pivots, CHUNK: tl.constexpr, SUB: tl.constexpr):
    """Number and mass of the split's tokens up to each pivot, [_PIVOTS] each."""
    numbers = tl.zeros([SUB, _PIVOTS], dtype=tl.int32)
    masses = tl.zeros([SUB, _PIVOTS], dtype=tl.int64)
    for start in range(0, CHUNK, SUB):
        ids = first_id + start + tl.arange(0, SUB)
        u = distance_below(tl.load(scores_ptr + ids, mask=ids < vocab, other=float("-inf")), best, temperature)
        left = u <= _LARGEST
        key = tl.where(left, u.to(tl.int32, bitcast=True), _INFINITY)
        mass = tl.where(left, integer_mass(u), 0)
        reached = key[:, None] <= pivots[None, :]
        numbers += reached.to(tl.int32)
        masses += tl.where(reached, mass[:, None], 0)
    return tl.sum(numbers, axis=0), tl.sum(masses, axis=0)


@triton.jit
def _gather(
    scores_ptr,
    first_id,
    vocab,
    best,
    temperature,
    low,
    high,
    candidates_ptr,
    counter_ptr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Appends u of the split's tokens in the bracket to the candidates, in any order."""
    for start in range(0, CHUNK, BLOCK):
        ids = first_id + start + tl.arange(0, BLOCK)
        u = distance_below(tl.load(scores_ptr + ids, mask=ids < vocab, other=float("-inf")), best, temperature)
        key = u.to(tl.int32, bitcast=True)
        wanted = (u <= _LARGEST) & (key > low) & (key <= high)
        place = tl.atomic_add(counter_ptr + tl.zeros([BLOCK], dtype=tl.int32), 1, mask=wanted, sem="relaxed")
        tl.store(candidates_ptr + place, u, mask=wanted)


@triton.jit
def _round_of_row(
    scores_ptr,  # this and the next four: of the row alone
    best_ptr,
    total_ptr,
    floats_ptr,
    ints_ptr,
    states_ptr,  # of all rows, as the next two
    numbers_ptr,
    masses_ptr,
    candidates_ptr,  # of the row alone, as the next
    counter_ptr,
    batch_index,
    batch,
    split,
    splits,
    vocab,
    ROUND: tl.constexpr,
    CHUNK: tl.constexpr,
    SUB: tl.constexpr,
    BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Measures, or gathers from, one split of a row with filters."""
    top_k = tl.load(ints_ptr + TOP_K)
    top_p = tl.load(floats_ptr + TOP_P)
    best, sound = row_best(best_ptr, splits, BLOCK_S)
    if sound & ((top_k > 0) | (top_p < 1.0)):
        temperature = tl.load(floats_ptr + TEMPERATURE)
        here = ROUND * batch + batch_index
        gathers = False
        if ROUND == 0:
            if split == 0:
                tl.store(counter_ptr, 0)
            state = (-1, 0x7F800000, 0, 2147483647, tl.full([], 0, dtype=tl.int64), tl.full([], 0, dtype=tl.int64))
            pivots = _first_pivots(best_ptr, total_ptr, splits, best, temperature, vocab, BLOCK_S)
        else:
            before = here - batch
            state = next_state(
                states_ptr + before * _STATE, numbers_ptr + before * splits * _PIVOTS,
                masses_ptr + before * splits * _PIVOTS, splits, top_k, top_p, vocab, ROUND == 1, CANDIDATES, BLOCK_S,
            )  # fmt: skip
            pivots = _equal_pivots(state[0], state[1])
            measured = is_wide(load_state(states_ptr + before * _STATE), CANDIDATES)
            gathers = measured & (not is_wide(state, CANDIDATES)) & (state[1] - state[0] > 1)
        if split == 0:
            state_ptr = states_ptr + here * _STATE
            tl.store(state_ptr, state[0])
            tl.store(state_ptr + 1, state[1])
            tl.store(state_ptr + 2, state[2])
            tl.store(state_ptr + 3, state[3])
            tl.store(state_ptr + 4, state[4])
            tl.store(state_ptr + 5, state[5])
            tl.store(state_ptr + 8 + tl.arange(0, _PIVOTS), pivots)
        first_id = split * CHUNK
        if gathers:
            _gather(
                scores_ptr, first_id, vocab, best, temperature, state[0], state[1], candidates_ptr, counter_ptr,
                CHUNK, BLOCK,
            )  # fmt: skip
        if is_wide(state, CANDIDATES):
            numbers, masses = _measure(scores_ptr, first_id, vocab, best, temperature, pivots, CHUNK, SUB)
            place = (here * splits + split) * _PIVOTS + tl.arange(0, _PIVOTS)
            tl.store(numbers_ptr + place, numbers)
            tl.store(masses_ptr + place, masses)


@triton.jit(do_not_specialize=["batch"], do_not_specialize_on_alignment=["best_ptr", "total_ptr", "rows_ptr"])
def narrow_kernel(
    scores_ptr,  # [N, vocab] float32
    best_ptr,  # [N, splits]
    total_ptr,  # [N, splits]
    rows_ptr,  # [N]
    floats_ptr,  # [rows, FLOATS]
    ints_ptr,  # [rows, INTS]
    states_ptr,  # [ROUNDS, N, _STATE] int64
    numbers_ptr,  # [ROUNDS, N, splits, _PIVOTS] int32
    masses_ptr,  # [ROUNDS, N, splits, _PIVOTS] int64
    candidates_ptr,  # [N, CANDIDATES] float32
    counter_ptr,  # [N] int32
    vocab,
    stride_scores,
    batch,
    ROUND: tl.constexpr,
    CHUNK: tl.constexpr,
    SUB: tl.constexpr,  # divides CHUNK
    BLOCK: tl.constexpr,  # divides CHUNK
    CANDIDATES: tl.constexpr,
    BLOCK_S: tl.constexpr,  # power of two, at least splits
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block measures one split of ROWS rows, one after another."""
    launch_dependents(PDL)
    split = tl.program_id(0)
    splits = tl.num_programs(0)
    # Neighbours in the batch, which often have the same filters, go to different thread blocks.
    places = tl.program_id(1) + tl.arange(0, ROWS) * tl.num_programs(1)
    rows, flags = load_flags(rows_ptr, ints_ptr, places, places < batch)
    wait_for_previous(PDL)
    for index in range(ROWS):
        if (_at(flags, index, ROWS) & HAS_FILTERS) != 0:
            batch_index = _at(places, index, ROWS).to(tl.int64)
            row = _at(rows, index, ROWS)
            _round_of_row(
                scores_ptr + batch_index * stride_scores, best_ptr + batch_index * splits,
                total_ptr + batch_index * splits, floats_ptr + row * FLOATS, ints_ptr + row * INTS,
                states_ptr, numbers_ptr, masses_ptr, candidates_ptr + batch_index * CANDIDATES,
                counter_ptr + batch_index, batch_index, batch, split, splits, vocab,
                ROUND, CHUNK, SUB, BLOCK, CANDIDATES, BLOCK_S,
            )  # fmt: skip


_launch = Launcher(
    narrow_kernel, writes=("candidates", "counter", "masses", "numbers", "states"), reads_early=("rows", "ints")
)


def _rows_of_program(splits: int, device: torch.device) -> tuple[int, ...]:
    """Rows that share a thread block, for `splits` of all rows; in a compile dry run all numbers that there are.

    Most rows have no filter, and starting a thread block costs more than to find that out.
    """
    if compiling_only():
        return 1, _ROWS
    return (_ROWS if splits >= _ROWS * _PROGRAMS * num_sms(device) else 1,)


def narrow(
    batch: SamplingBatch, columns: SamplingColumns, statistics: SplitStatistics, candidates: Tensor, counter: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launches the rounds for the first filter, top-k or top-p, of every row that has one.

    Returns states int64 [ROUNDS, N, STATE], and the measurements of each round: numbers int32 and masses int64
    [ROUNDS, N, splits, 8]. Rounds that a row skips are not written. Rows that are narrow enough before the last round
    have their tokens in `candidates` float32 [N, number], for which `counter` int32 [N] is scratch.
    """
    scores, best = batch.scores, statistics.best
    (number, vocab), splits, chunk = scores.shape, best.shape[1], split_size(scores.shape[1])
    states = torch.empty(ROUNDS, number, STATE, dtype=torch.int64, device=scores.device)
    numbers = torch.empty(ROUNDS, number, splits, 8, dtype=torch.int32, device=scores.device)
    masses = torch.empty(ROUNDS, number, splits, 8, dtype=torch.int64, device=scores.device)
    for rows in _rows_of_program(splits * number, scores.device):
        for index in range(ROUNDS):
            _launch(
                (splits, triton.cdiv(number, rows)),
                (
                    scores, best, statistics.total, batch.rows, columns.floats, columns.ints, states, numbers, masses,
                    candidates, counter,
                ),
                (vocab, scores.stride(0)),
                (number,),
                ROUND=index,
                CHUNK=chunk,
                SUB=min(_SUB, chunk),
                BLOCK=min(_GATHERED, chunk),
                CANDIDATES=candidates.shape[1],
                BLOCK_S=triton.next_power_of_2(splits),
                ROWS=rows,
                num_warps=4,
            )  # fmt: skip
    return states, numbers, masses

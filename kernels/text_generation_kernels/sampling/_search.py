"""Sort-free selection in a row's scores: the smallest key whose tokens reach a target together.

A key is a non-negative float, taken as the integer of its bits, which has the same order: u of `columns.py`, or
|u - origin|. The tokens up to a key are counted, or their integer mass is added up, so every sum is exact and depends
on the row alone.

Each round cuts the bracket that holds the answer by three pivots, in one pass over the row. Pivots are equidistant
alternately as floats, which suits scores, and as integers, which ends after 16 rounds whatever the scores are. Once few
enough tokens are in the bracket, they are gathered, and the search continues in registers. One thread block searches
one row. Pivot search in place of sorting comes from top-k selection by bisection; "Qrita" (arXiv 2602.01518) applies it
to top-k and top-p of language models.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
# ruff: noqa: SIM108 - the choice is made by the compiler

from ..runtime.triton import tl, triton
from .columns import distance_below, integer_mass, integer_share, within

CANDIDATES = 4096
"""Most tokens in the bracket with which the search continues in registers."""
TILE = 2048
"""Tokens of a row that are loaded together."""
NUM_WARPS = 16

_INFINITY = tl.constexpr(0x7F800000)  # the bits of inf, above every key of a surviving token
_OUTSIDE = tl.constexpr(0x7FFFFFFF)  # above that: filtered out


@triton.jit
def key_of(u, origin, BY_DISTANCE: tl.constexpr):
    """The key of u: u itself, or its distance from the origin."""
    if BY_DISTANCE:
        return tl.abs(u - origin).to(tl.int32, bitcast=True)
    else:
        return u.to(tl.int32, bitcast=True)


@triton.jit
def load_tile(
    scores_ptr,  # the row's scores, float32 [vocab]
    start,
    vocab,
    row,  # (best, temperature, largest, first_id, centre, radius) of the row
    TILE: tl.constexpr,
):
    """Ids, u, and a survivor mask, of TILE tokens."""
    best, temperature, largest, first_id, centre, radius = row
    ids = start + tl.arange(0, TILE)
    u = distance_below(tl.load(scores_ptr + ids, mask=ids < vocab, other=float("-inf")), best, temperature)
    return ids, u, within(u, ids, largest, first_id, centre, radius)


@triton.jit
def _pivots(low, high, rounds, guess):
    """Three keys in ascending order, above `low` and, unless the bracket is too narrow, below `high`."""
    first = tl.maximum(low, 0).to(tl.float32, bitcast=True)
    quarter = 0.25 * (high.to(tl.float32, bitcast=True) - first)
    step = (high - low) // 4
    by_value = (rounds % 2 == 1) & (high < _INFINITY)
    pivot1 = tl.where(by_value, (first + quarter).to(tl.int32, bitcast=True), low + step)
    pivot2 = tl.where(by_value, (first + 2.0 * quarter).to(tl.int32, bitcast=True), low + 2 * step)
    pivot3 = tl.where(by_value, (first + 3.0 * quarter).to(tl.int32, bitcast=True), low + 3 * step)
    # The first ones are a quarter of the guess, the guess, and one above every surviving token.
    pivot1 = tl.where(
        rounds == 0, (0.25 * guess).to(tl.int32, bitcast=True), tl.minimum(tl.maximum(pivot1, low + 1), high - 1)
    )
    pivot2 = tl.where(rounds == 0, guess.to(tl.int32, bitcast=True), tl.minimum(tl.maximum(pivot2, low + 1), high - 1))
    pivot3 = tl.where(rounds == 0, _INFINITY - 1, tl.minimum(tl.maximum(pivot3, low + 1), high - 1))
    return pivot1, pivot2, pivot3


@triton.jit
def _pick(target, values, low, at_pivots, high):
    """Values at both ends of the quarter that reaches the target, from those at the ends of all quarters."""
    value1, value2, value3 = values
    at1, at2, at3 = at_pivots
    below = tl.where(value1 >= target, low, tl.where(value2 >= target, at1, tl.where(value3 >= target, at2, at3)))
    above = tl.where(value1 >= target, at1, tl.where(value2 >= target, at2, tl.where(value3 >= target, at3, high)))
    return below, above


@triton.jit
def _measure(
    scores_ptr, vocab, row, origin, pivots, BY_MASS: tl.constexpr, BY_DISTANCE: tl.constexpr, TILE: tl.constexpr
):
    """Number and mass of the tokens up to each pivot."""
    pivot1, pivot2, pivot3 = pivots
    number1 = tl.zeros([TILE], dtype=tl.int32)
    number2 = tl.zeros([TILE], dtype=tl.int32)
    number3 = tl.zeros([TILE], dtype=tl.int32)
    mass1 = tl.zeros([TILE], dtype=tl.int64)
    mass2 = tl.zeros([TILE], dtype=tl.int64)
    mass3 = tl.zeros([TILE], dtype=tl.int64)
    for start in range(0, vocab, TILE):
        _, u, left = load_tile(scores_ptr, start, vocab, row, TILE)
        key = tl.where(left, key_of(u, origin, BY_DISTANCE), _OUTSIDE)
        number1 += (key <= pivot1).to(tl.int32)
        number2 += (key <= pivot2).to(tl.int32)
        number3 += (key <= pivot3).to(tl.int32)
        if BY_MASS:
            weight = tl.where(left, integer_mass(u), 0)
            mass1 += tl.where(key <= pivot1, weight, 0)
            mass2 += tl.where(key <= pivot2, weight, 0)
            mass3 += tl.where(key <= pivot3, weight, 0)
    numbers = (tl.sum(number1, axis=0), tl.sum(number2, axis=0), tl.sum(number3, axis=0))
    masses = (tl.sum(mass1, axis=0), tl.sum(mass2, axis=0), tl.sum(mass3, axis=0))
    return numbers, masses


@triton.jit
def _gather(
    scores_ptr,
    vocab,
    row,
    origin,
    low,
    high,
    candidates_ptr,
    counter_ptr,
    BY_DISTANCE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Writes u of the tokens in the bracket to `candidates_ptr`, in any order."""
    tl.store(counter_ptr, 0)
    tl.debug_barrier()
    for start in range(0, vocab, TILE):
        _, u, left = load_tile(scores_ptr, start, vocab, row, TILE)
        key = key_of(u, origin, BY_DISTANCE)
        wanted = left & (key > low) & (key <= high)
        place = tl.atomic_add(
            counter_ptr + tl.zeros([TILE], dtype=tl.int32), 1, mask=wanted, sem="relaxed", scope="cta"
        )
        tl.store(candidates_ptr + place, u, mask=wanted)
    tl.debug_barrier()


@triton.jit
def fresh():
    """State of a search at its beginning: low, high and so on, as in `_narrow.py`."""
    zero = tl.full([], 0, dtype=tl.int64)
    low = tl.full([], -1, dtype=tl.int32)
    high = tl.full([], _INFINITY, dtype=tl.int32)
    return low, high, tl.full([], 0, dtype=tl.int32), tl.full([], 2147483647, dtype=tl.int32), zero, zero


@triton.jit
def _cut(goal, pivots, numbers, masses, bracket, BY_MASS: tl.constexpr):
    """The quarter of the bracket (low, high, number_low, number_high, mass_low) whose tokens reach the goal."""
    low, high, number_low, number_high, mass_low = bracket
    if BY_MASS:
        reached = masses
        mass_low, _ = _pick(goal, reached, mass_low, reached, goal)
    else:
        number1, number2, number3 = numbers
        reached = (number1.to(tl.int64), number2.to(tl.int64), number3.to(tl.int64))
    number_low, number_high = _pick(goal, reached, number_low, numbers, number_high)
    low, high = _pick(goal, reached, low, pivots, high)
    return low, high, number_low, number_high, mass_low


@triton.jit
def _search_row(
    scores_ptr,
    vocab,
    row,
    origin,
    target,
    state,
    rounds,
    guess,
    BY_MASS: tl.constexpr,
    BY_DISTANCE: tl.constexpr,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Passes over the row until at most CANDIDATES tokens are in the bracket. Returns state and rounds."""
    low, high, number_low, number_high, mass_low, goal = state
    while (high - low > 1) & (number_high - number_low > CANDIDATES):
        pivots = _pivots(low, high, rounds, guess)
        numbers, masses = _measure(scores_ptr, vocab, row, origin, pivots, BY_MASS, BY_DISTANCE, TILE)
        if rounds == 0:
            # The third pivot is above every surviving token.
            number_high = numbers[2]
            if BY_MASS:
                goal = integer_share(masses[2], target)
            else:
                goal = target
        bracket = (low, high, number_low, number_high, mass_low)
        low, high, number_low, number_high, mass_low = _cut(goal, pivots, numbers, masses, bracket, BY_MASS)
        rounds += 1
    return low, high, number_low, number_high, mass_low, goal, rounds


@triton.jit
def _search_candidates(
    candidates_ptr,  # u of the tokens in the bracket
    origin,
    state,
    rounds,
    guess,
    BY_MASS: tl.constexpr,
    BY_DISTANCE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """The rest of the search, in registers. Returns the bracket."""
    low, high, number_low, number_high, mass_low, goal = state
    place = tl.arange(0, CANDIDATES)
    valid = place < number_high - number_low
    u = tl.load(candidates_ptr + place, mask=valid, other=float("inf"))
    key = tl.where(valid, key_of(u, origin, BY_DISTANCE), _OUTSIDE)
    weight = tl.where(valid, integer_mass(u), 0)
    first_number, first_mass = number_low, mass_low
    low = tl.maximum(low, tl.min(key, axis=0) - 1)
    high = tl.minimum(high, tl.max(tl.where(valid, key, 0), axis=0))
    while high - low > 1:
        pivots = _pivots(low, high, rounds, guess)
        pivot1, pivot2, pivot3 = pivots
        number1 = first_number + tl.sum((key <= pivot1).to(tl.int32), axis=0)
        number2 = first_number + tl.sum((key <= pivot2).to(tl.int32), axis=0)
        number3 = first_number + tl.sum((key <= pivot3).to(tl.int32), axis=0)
        numbers = (number1, number2, number3)
        masses = (mass_low, mass_low, mass_low)
        if BY_MASS:
            mass1 = first_mass + tl.sum(tl.where(key <= pivot1, weight, 0), axis=0)
            mass2 = first_mass + tl.sum(tl.where(key <= pivot2, weight, 0), axis=0)
            mass3 = first_mass + tl.sum(tl.where(key <= pivot3, weight, 0), axis=0)
            masses = (mass1, mass2, mass3)
        bracket = (low, high, number_low, number_high, mass_low)
        low, high, number_low, number_high, mass_low = _cut(goal, pivots, numbers, masses, bracket, BY_MASS)
        rounds += 1
    return low, high, number_low, number_high, mass_low


@triton.jit
def search(
    scores_ptr,  # the row's scores, float32 [vocab]
    vocab,
    row,  # as in load_tile
    origin,
    target,  # int64: number of tokens; by mass, float32: share of the survivors' mass
    state,  # of `fresh`, or of earlier rounds
    rounds,  # earlier rounds
    gathered,  # whether the tokens in the bracket are candidates already
    guess,  # float32, of the key
    candidates_ptr,  # scratch, float32 [CANDIDATES]
    counter_ptr,  # scratch, int32
    BY_MASS: tl.constexpr,
    BY_DISTANCE: tl.constexpr,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """The smallest key whose tokens reach the target, what tokens of that key must contribute to it, and how many have
    it. Where all tokens together do not reach the target, the key is that of inf.
    """
    rounds += tl.full([], 0, dtype=tl.int32)
    low, high, number_low, number_high, mass_low, goal, rounds = _search_row(
        scores_ptr, vocab, row, origin, target, state, rounds, guess, BY_MASS, BY_DISTANCE, TILE, CANDIDATES
    )
    if high - low > 1:
        if not gathered:
            _gather(scores_ptr, vocab, row, origin, low, high, candidates_ptr, counter_ptr, BY_DISTANCE, TILE)
        left = (low, high, number_low, number_high, mass_low, goal)
        low, high, number_low, number_high, mass_low = _search_candidates(
            candidates_ptr, origin, left, rounds, guess, BY_MASS, BY_DISTANCE, CANDIDATES
        )
    if BY_MASS:
        return high, goal - mass_low, number_high - number_low
    else:
        return high, goal - number_low, number_high - number_low

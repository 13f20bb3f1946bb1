"""Bounds of each filter of a row (top-k, top-p, typical-p), found by searches in its scores; see `survivors`."""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false

from ..runtime.triton import tl, triton
from ._search import fresh, load_tile, search
from .columns import LARGEST, integer_mass

_LARGEST = tl.constexpr(LARGEST)
# First guess of a filter's bound.
_GUESS = tl.constexpr(8.0)


@triton.jit
def _first_of_last(scores_ptr, vocab, row, value, number, TILE: tl.constexpr):
    """The id from which the last `number` tokens with u equal to `value` begin."""
    missing = number
    start = (vocab - 1) // TILE * TILE
    found = 0
    while start >= 0:
        ids, u, left = load_tile(scores_ptr, start, vocab, row, TILE)
        equal = (left & (u == value)).to(tl.int32)
        here = tl.sum(equal, axis=0)
        if here >= missing:
            # Equal tokens before that one: here - missing.
            before = tl.cumsum(equal, axis=0) - equal
            found = tl.sum(tl.where((equal != 0) & (before == here - missing), ids, 0), axis=0)
            start = -TILE
        else:
            missing -= here
            start -= TILE
    return found


@triton.jit
def _mean(scores_ptr, vocab, row, TILE: tl.constexpr):
    """Mean of u under the survivors' probabilities."""
    weights = tl.zeros([TILE], dtype=tl.int64)
    weighted = tl.zeros([TILE], dtype=tl.float64)
    for start in range(0, vocab, TILE):
        _, u, left = load_tile(scores_ptr, start, vocab, row, TILE)
        weight = tl.where(left, integer_mass(u), 0)
        weights += weight
        weighted += tl.where(left, weight.to(tl.float64) * u.to(tl.float64), 0.0)
    return (tl.sum(weighted, axis=0) / tl.sum(weights, axis=0).to(tl.float64)).to(tl.float32)


@triton.jit
def smallest(scores_ptr, vocab, row, TILE: tl.constexpr):
    """Smallest u of the survivors."""
    least = tl.full([TILE], float("inf"), dtype=tl.float32)
    for start in range(0, vocab, TILE):
        _, u, left = load_tile(scores_ptr, start, vocab, row, TILE)
        least = tl.where(left, tl.minimum(least, u), least)
    return tl.min(least, axis=0)


@triton.jit
def top_k_bound(
    scores_ptr,
    vocab,
    row,
    top_k,
    narrowed,
    rounds,
    gathered,
    scratch,  # of a search: candidates_ptr, counter_ptr
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Largest of the `top_k` smallest u."""
    candidates_ptr, counter_ptr = scratch
    guess = tl.full([], _GUESS, dtype=tl.float32)
    target = tl.minimum(top_k, vocab).to(tl.int64)
    key, _, _ = search(
        scores_ptr, vocab, row, 0.0, target, narrowed, rounds, gathered, guess, candidates_ptr, counter_ptr,
        False, False, TILE, CANDIDATES,
    )  # fmt: skip
    return tl.minimum(key.to(tl.float32, bitcast=True), _LARGEST)


@triton.jit
def top_p_bounds(
    scores_ptr,
    vocab,
    row,
    top_p,
    narrowed,
    rounds,
    gathered,
    scratch,  # of a search: candidates_ptr, counter_ptr
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Largest u of the fewest tokens that reach `top_p`, and the first id that survives among several of that u."""
    candidates_ptr, counter_ptr = scratch
    guess = tl.full([], _GUESS, dtype=tl.float32)
    key, missing, ties = search(
        scores_ptr, vocab, row, 0.0, top_p, narrowed, rounds, gathered, guess, candidates_ptr, counter_ptr,
        True, False, TILE, CANDIDATES,
    )  # fmt: skip
    largest = key.to(tl.float32, bitcast=True)
    first_id = row[3]
    weight = integer_mass(largest)
    kept = (missing + weight - 1) // weight
    if kept < ties:
        first_id = _first_of_last(scores_ptr, vocab, row, largest, kept.to(tl.int32), TILE).to(tl.float32)
    return largest, first_id


@triton.jit
def typical_p_bounds(scores_ptr, vocab, row, typical_p, scratch, TILE: tl.constexpr, CANDIDATES: tl.constexpr):
    """Mean of u, and the distance from it within which tokens reach `typical_p`."""
    candidates_ptr, counter_ptr = scratch
    guess = tl.full([], _GUESS, dtype=tl.float32)
    mean = _mean(scores_ptr, vocab, row, TILE)
    key, _, _ = search(
        scores_ptr, vocab, row, mean, typical_p, fresh(), 0, False, guess, candidates_ptr, counter_ptr,
        True, True, TILE, CANDIDATES,
    )  # fmt: skip
    return mean, key.to(tl.float32, bitcast=True)

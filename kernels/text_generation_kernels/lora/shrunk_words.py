"""What shrink passes to expand within one launch: each float32 beside the number of the turn that made it.

    word = turn << 32 | bits of the value

A word is stored and loaded at once, so a reader that finds the turn of this launch has its value: there are no flags,
fences or barriers, and nobody clears words. Thread blocks that write words come before all that read them and wait for
nobody but previous kernels, so a reader waits for blocks that run already.

Every launch has a turn of its own: the host counts steps, brings the number of each to the device with its tables
(`adapter_tiles.py`), and counts the launches of a step. All launches of a stream share the words, because a kernel
writes them when all kernels before it are finished. Before the count starts again, the host sets all words to zeros,
which no turn is.
"""

# pyright: basic, reportArgumentType=false
from ..runtime.triton import tl, triton

MOST_LAUNCHES = 1 << 12
"""Of a step."""
LAST_TURN = (1 << 31) // MOST_LAUNCHES - 1
"""Steps that are counted before the count starts again, from 1."""
_LAUNCHES = tl.constexpr(MOST_LAUNCHES)


@triton.jit
def turn_of(counts_ptr, launch):
    """The number of this launch, int32."""
    return tl.load(counts_ptr) * _LAUNCHES + launch


@triton.jit
def words_of(values, turn):
    """Words [...] int64 of float32 values."""
    bits = values.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (turn.to(tl.int64) << 32) | bits


@triton.jit
def wait_for_some(word_ptrs, here, turn):
    """Waits until some words have arrived, for whoever will read many more: if thread blocks asked again and again for
    all of theirs, little else would come through the L2 cache. There must be at least as many as threads.
    """
    turn_ptrs = word_ptrs.to(tl.pointer_type(tl.int32)) + 1
    missing = tl.max((here & (tl.load(turn_ptrs, mask=here, other=0, volatile=True) != turn)).to(tl.int32))
    while missing != 0:
        missing = tl.max((here & (tl.load(turn_ptrs, mask=here, other=0, volatile=True) != turn)).to(tl.int32))


@triton.jit
def values_of(word_ptrs, words, here, turn):
    """The values of words, float32, once all have arrived: `words` were loaded before. 0 where not `here`.

    There must be at least as many words as threads. Of fewer, several threads would have copies of one word, each
    loaded at its own time, while only one is asked whether it is missing; and the compiler would take their load for
    cheap, and repeat it in other threads. Ahead-of-time compilations for Hopper fail on such a tile.
    """
    missing = tl.max((here & ((words >> 32) != turn)).to(tl.int32))
    while missing != 0:
        words = tl.load(word_ptrs, mask=here, other=0, volatile=True)
        missing = tl.max((here & ((words >> 32) != turn)).to(tl.int32))
    return words.to(tl.int32).to(tl.float32, bitcast=True)

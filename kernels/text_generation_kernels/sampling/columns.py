"""Parameter columns of a row, and the measure by which the sampling operators compare tokens.

Scores are compared by their distance below the best of their row, in units of the temperature:

    u(v) = (max(x) - x(v)) / t          0 for the best token, inf for an excluded one
    p(v) = exp(-u(v)) / sum of exp(-u)

So u is never negative, its bits as an integer have its order, and no temperature overflows the best token. Probability
mass is added up in integers, exp(-u) in units of 2**-44: sums are exact in any order, so they depend on the row alone.
2**18 tokens of the best score fit into 63 bits.
"""

# pyright: basic, reportArgumentType=false
from enum import IntEnum, IntFlag

import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.triton import tl, triton

MAX_TOP = 32
"""Most alternatives of a token that are reported, ties included."""
MAX_LOGIT_BIAS = 1024
"""Most entries of a row's logit bias."""


class Floats(IntEnum):
    """Columns of a row's float32 parameters."""

    TEMPERATURE = 0
    TOP_P = 1
    TYPICAL_P = 2
    MIN_P = 3
    REPETITION = 4
    FREQUENCY = 5
    PRESENCE = 6
    WIDTH = 8


class Ints(IntEnum):
    """Columns of a row's int32 parameters."""

    FLAGS = 0
    MASK_SLOT = 1
    TOP_K = 2
    TOP_N = 3
    MIN_NEW_TOKENS = 4
    NUM_BIAS = 5
    WIDTH = 8


class Flags(IntFlag):
    """Options of a row; a row without any is plain and greedy."""

    SAMPLE = 1
    BIAS = 2
    WATERMARK = 4
    PENALTIES = 8
    MIN_NEW_TOKENS = 16
    FILTERS = 32
    TOP = 64
    MASK = 128
    """Its mask slot is not 0."""
    PROCESS = BIAS | WATERMARK | PENALTIES | MIN_NEW_TOKENS | MASK
    """Its scores are not its logits."""
    SCORES = PROCESS | FILTERS | TOP
    """Its scores are stored, because several kernels read them."""


_LARGEST_SPLIT = 4096
"""Tokens that one thread block holds in registers."""
_SMALLEST_SPLIT = 32
"""Tokens of a mask word."""
_SPLITS = 16
"""Least splits of a vocabulary, if it has enough tokens: ranks shard it by splits."""
LARGEST = 3.4028234663852886e38
"""The largest finite float32: a bound that keeps every token that is not excluded."""
EXCLUDED = -1
"""`valid` of a row whose mask or logits exclude every token."""
SMALLEST = 1.1754943508222875e-38
"""The smallest normal float32."""
UNIT = float(1 << 44)
"""Integer mass of the best token."""


def split_size(vocab_size: int) -> int:
    """Tokens of a vocabulary split, a power of two. The statistics of a split depend on nothing else, so they have the
    same bits on any number of ranks.
    """
    wanted = -(-vocab_size // _SPLITS)
    return min(_LARGEST_SPLIT, max(_SMALLEST_SPLIT, 1 << (wanted - 1).bit_length()))


def num_splits(vocab_size: int) -> int:
    """Splits of the whole vocabulary; the last one may be smaller."""
    return -(-vocab_size // split_size(vocab_size))


def mask_words(vocab_size: int) -> int:
    """Words of a mask: bit v % 32 of word v // 32 belongs to token v, the layout of grammar libraries."""
    return -(-vocab_size // 32)


def flags_of(ints: Tensor, rows: Tensor) -> list[int]:
    """Flags of each row of a batch, on the host: most batches need few of the operators."""
    return ints[:, Ints.FLAGS].index_select(0, rows).tolist()


def batch_indices(flags: list[int], wanted: Flags) -> list[int]:
    """Places in the batch whose row has one of the `wanted` flags."""
    return [batch_index for batch_index, row_flags in enumerate(flags) if row_flags & wanted]


def distance(scores: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """The u of the formula above, as a new tensor.

    `scores` float32 [N, vocab]; `best`, `temperature` float32 [N].
    """
    return (best.unsqueeze(1) - scores).mul_(inverse(temperature).unsqueeze(1))


def inverse(temperature: Tensor) -> Tensor:
    """1 / t, clamped to the range of float32."""
    return (1.0 / temperature).clamp(SMALLEST, LARGEST)


def in_splits(scores: Tensor, size: int) -> Tensor:
    """[N, width] to [N, splits, size], padded with -inf."""
    padding = -scores.shape[1] % size
    padded = functional.pad(scores, (0, padding), value=-torch.inf) if padding else scores
    return padded.unflatten(1, (-1, size))


def mass(u: Tensor) -> Tensor:
    """exp(-u) as int64 in units of 2**-44."""
    return (u.neg().exp_() * UNIT).to(torch.int64)


def share(total: Tensor, fraction: Tensor) -> Tensor:
    """The integer mass that reaches `fraction` of `total`: at least one unit, at most all."""
    return (total.double() * fraction.double()).ceil().to(torch.int64).clamp(min=torch.ones_like(total), max=total)


def survives(u: Tensor, bounds: Tensor) -> Tensor:
    """Survivor mask, bool [N, vocab]. `bounds` float32 [N, 4] as `survivors` writes them."""
    largest, first_id, centre, radius = bounds.unsqueeze(2).unbind(dim=1)
    ids = torch.arange(u.shape[1], device=u.device)
    return ((u < largest) | ((u == largest) & (ids >= first_id))) & ((u - centre).abs() <= radius)


# The constants above for kernels, which read globals only as constexprs.
TEMPERATURE, TOP_P, TYPICAL_P, MIN_P = (
    tl.constexpr(int(column)) for column in (Floats.TEMPERATURE, Floats.TOP_P, Floats.TYPICAL_P, Floats.MIN_P)
)
REPETITION, FREQUENCY, PRESENCE, FLOATS = (
    tl.constexpr(int(column)) for column in (Floats.REPETITION, Floats.FREQUENCY, Floats.PRESENCE, Floats.WIDTH)
)
FLAGS, MASK_SLOT, TOP_K, TOP_N, MIN_NEW_TOKENS, NUM_BIAS, INTS = (tl.constexpr(int(column)) for column in Ints)
SAMPLES, HAS_BIAS, HAS_WATERMARK, HAS_PENALTIES, HAS_MINIMUM, HAS_FILTERS, HAS_TOP, HAS_MASK = (
    tl.constexpr(int(flag)) for flag in Flags
)
PROCESSED, WRITES_SCORES = (tl.constexpr(int(flag)) for flag in (Flags.PROCESS, Flags.SCORES))
BIASES, TOPS = tl.constexpr(MAX_LOGIT_BIAS), tl.constexpr(MAX_TOP)


@triton.jit
def load_flags(
    rows_ptr,  # [N]
    ints_ptr,  # [rows, INTS]
    batch_index,
    exists=True,  # where not, nothing is loaded
):
    """The row at a place of the batch, or those at several, and its flags. No kernel that launches dependents early
    writes either, so both may be prefetched before the wait: a kernel that a plain row does not need costs little more
    than the wait.
    """
    row = tl.load(rows_ptr + batch_index, mask=exists, other=0)
    return row, tl.load(ints_ptr + row * INTS + FLAGS, mask=exists, other=0)


@triton.jit
def distance_below(
    x,  # float32 scores
    best,  # float32, the row's best score
    temperature,
):
    """`distance`, to the bit."""
    scale = tl.div_rn(1.0, temperature)
    return (best - x) * tl.minimum(tl.maximum(scale, 1.1754943508222875e-38), 3.4028234663852886e38)


@triton.jit
def integer_mass(u):
    """`mass`, to the bit except for the rounding of the exponential."""
    return (tl.exp(-u) * 17592186044416.0).to(tl.int64)


@triton.jit
def integer_share(total, fraction):
    """`share`, to the bit."""
    exact = total.to(tl.float64) * fraction.to(tl.float64)
    down = exact.to(tl.int64)
    up = down + (down.to(tl.float64) < exact).to(tl.int64)
    return tl.minimum(tl.maximum(up, 1), total)


@triton.jit
def within(u, ids, largest, first_id, centre, radius):
    """`survives`, for the bounds of one row."""
    return ((u < largest) | ((u == largest) & (ids >= first_id))) & (tl.abs(u - centre) <= radius)


@triton.jit
def row_best(
    best_ptr,  # the row's best score in each split
    splits,
    BLOCK_S: tl.constexpr,  # power of two, at least splits
):
    """The row's best score, and whether its scores are sound: no NaN, not infinite, not all excluded."""
    split = tl.arange(0, BLOCK_S)
    best = tl.load(best_ptr + split, mask=split < splits, other=float("-inf"))
    broken = tl.max((best != best).to(tl.int32), axis=0) != 0
    highest = tl.max(best, axis=0)
    return highest, (tl.abs(highest) < float("inf")) & (not broken)

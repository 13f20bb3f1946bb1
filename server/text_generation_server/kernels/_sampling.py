"""What the sampling operators share: the parameter columns of a row, and the measure in which tokens are compared.

Scores are compared by how far they lie below the best of their row, in units of the temperature:

    u(v) = (max(x) - x(v)) / t          0 for the best token, inf for an excluded one
    p(v) = exp(-u(v)) / sum of exp(-u)

so u is never negative, its bit pattern as an integer has its order, and no temperature overflows the best token.
Probability mass is added up in integers, exp(-u) in units of 2**-44: sums are exact in any order, so they depend on
the row alone. 2**18 tokens of the best score fit into 63 bits.
"""

# pyright: basic, reportArgumentType=false
from enum import IntEnum, IntFlag

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_TOP = 32
"""Most reported alternatives of a token, ties included."""
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
    TOP_K = 1
    TOP_N = 2
    MIN_NEW_TOKENS = 3
    NUM_BIAS = 4
    WIDTH = 8


class Flags(IntFlag):
    """What a row asks for; a row without any is plain and greedy."""

    SAMPLE = 1
    BIAS = 2
    WATERMARK = 4
    PENALTIES = 8
    MIN_NEW_TOKENS = 16
    FILTERS = 32
    PROCESS = BIAS | WATERMARK | PENALTIES | MIN_NEW_TOKENS
    """Its scores are not its logits."""
    SCORES = PROCESS | FILTERS
    """Its scores are written out, because they are read several times."""


CHUNK = 4096
"""Tokens of a split of the vocabulary on CUDA: what one program holds in registers."""
LARGEST = 3.4028234663852886e38
"""The largest finite float32: the bound that keeps every token that is not excluded."""
UNIT = float(1 << 44)
"""Integer mass of the best token."""


def num_splits(vocab_size: int, device: torch.device) -> int:
    """How many parts the statistics of `logits_process` have: as many as programs, or one where torch runs alone."""
    return -(-vocab_size // CHUNK) if device.type == "cuda" else 1


def distance(scores: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """u of the formula above. `scores` float32 [N, vocab]; `best`, `temperature` float32 [N]. Returns a new tensor."""
    inverse = (1.0 / temperature).clamp(max=LARGEST)
    return (best.unsqueeze(1) - scores).mul_(inverse.unsqueeze(1))


def mass(u: Tensor) -> Tensor:
    """exp(-u) as int64 in units of 2**-44."""
    return (u.neg().exp_() * UNIT).to(torch.int64)


def survives(u: Tensor, bounds: Tensor) -> Tensor:
    """Which tokens are left, bool [N, vocab]. `bounds` float32 [N, 4] as `survivors` writes it."""
    largest, first_id, centre, radius = bounds.unsqueeze(2).unbind(dim=1)
    ids = torch.arange(u.shape[1], device=u.device)
    return ((u < largest) | ((u == largest) & (ids >= first_id))) & ((u - centre).abs() <= radius)


@triton.jit
def distance_below(
    x,  # float32 scores
    best,  # float32, the row's best score
    temperature,
):
    """u of the formula above, with the bits of `distance`."""
    inverse = tl.minimum(tl.div_rn(1.0, temperature), 3.4028234663852886e38)
    return (best - x) * inverse


@triton.jit
def integer_mass(u):
    """exp(-u) in units of 2**-44, as int64."""
    return (tl.exp(-u) * 17592186044416.0).to(tl.int64)


@triton.jit
def survives_bounds(u, ids, largest, first_id, centre, radius):
    """Whether tokens are within the bounds that `survivors` found."""
    return ((u < largest) | ((u == largest) & (ids >= first_id))) & (tl.abs(u - centre) <= radius)

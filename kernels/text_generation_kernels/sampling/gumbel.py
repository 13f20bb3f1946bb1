"""Gumbel-max noise: argmax(score + G) with G standard Gumbel draws from softmax(score), exactly.

    w = (bits + 1/2) / 2**32 in float32, at most 1 - 2**-24
                                   bits: Philox of the key `seed`; step: tokens generated so far
    E = -log1p(-w)                  exponential; small E, the likely winners, is precise
    G = -log(E)

No softmax, no sort, no multinomial, and no state but (seed, step). Triton has no `log1p`: there log1p(-w) is
log(v) * w / (1 - v) with v = 1 - w, and -w where v rounds to 1. Used by `draw`.

Bytes floor: scores read once, N x vocab x 4; the noise stays in registers.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.triton import tl, triton
from .philox import DOMAIN_GUMBEL, vocabulary_bits

_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def gumbel_noise(seed: Tensor, step: Tensor, number: int, first_id: int = 0) -> Tensor:
    """Noise float32 [N, number], finite, of `number` ids from `first_id` (a multiple of 4) on. `seed` int64 [N] (bits
    of the 64-bit seed), `step` int64 [N].
    """
    return gumbel(vocabulary_bits(seed, step, DOMAIN_GUMBEL, number, first_id))


def gumbel(bits: Tensor) -> Tensor:
    """The noise of random bits, int64 below 2**32: float32 of the same shape, finite."""
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


@triton.jit
def gumbel_of(
    words,  # uint32
):
    """The noise of these random bits, float32, finite."""
    w = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    v = 1.0 - w
    rest = 1.0 - v
    log1p = tl.where(rest == 0.0, -w, tl.log(v) * (w / tl.where(rest == 0.0, 1.0, rest)))
    return -tl.log(-log1p)

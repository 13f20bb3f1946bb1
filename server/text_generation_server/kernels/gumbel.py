"""Gumbel-max sampling: argmax(score + G) with G standard Gumbel noise draws from softmax(score), exactly.

    w = (bits + 1/2) / 2**32 in float32, at most 1 - 2**-24
                                   bits: Philox of the key `seed`; step: tokens generated so far
    E = -log1p(-w)                  exponential; small E, the likely winners, is precise
    G = -log(E)

No softmax, no sort, no multinomial, and no state but (seed, step). Where `log1p` is missing, use the identity
log1p(-w) = log(u) * w / (1 - u) with u = 1 - w, and -w where u rounds to 1. Called by `engine.sampling`.

Bytes floor: scores read once, N x vocab x 4; the noise never has to leave registers.
"""

import torch
from torch import Tensor

from .philox import DOMAIN_GUMBEL, vocabulary_bits

_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def gumbel_noise(seed: Tensor, step: Tensor, vocab_size: int) -> Tensor:
    """`seed` int64 [N] (bit pattern of the 64-bit seed), `step` int64 [N]. Returns float32 [N, vocab_size], finite."""
    bits = vocabulary_bits(seed, step, DOMAIN_GUMBEL, vocab_size)
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()



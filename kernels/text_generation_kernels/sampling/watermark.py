"""Green-list watermark of Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023.

The previous token selects a green list of the vocabulary, whose logits get `delta` added. A detector that knows the
rule counts green tokens. The list comes from Philox, not a random permutation, so it needs no sort and no generator,
and depends on the previous token alone:

    green(v) = bits(key = previous token, step = 0, domain = watermark, v) < gamma * 2**32

Each id is green with probability `gamma` independently, where the paper marks exactly gamma * vocab ids.
Used by `logits_process`. Bytes floor: scores read and written, N x vocab x 8.
"""

import torch
from torch import Tensor

from .philox import DOMAIN_WATERMARK, vocabulary_bits


def green_list(previous: Tensor, gamma: float, number: int, first_id: int = 0) -> Tensor:
    """`previous` int64 [N], token ids. Returns bool [N, number], for ids from `first_id` on, a multiple of 4."""
    bits = vocabulary_bits(previous, torch.zeros_like(previous), DOMAIN_WATERMARK, number, first_id)
    return bits < green_bound(gamma)


def green_bound(gamma: float) -> int:
    """32 random bits below it are green."""
    return round(gamma * 2**32)

"""Log-normaliser of prompt scores: log-probability = score - logsumexp(scores), without a table of all of them.

Called for prompts whose log-probabilities are wanted. Bytes floor: scores read once, N x vocab x 4.
"""

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 24
"""Scores handled at once (64 MiB of float32): logsumexp needs a scratch copy of its input."""


def log_normalizer(scores: Tensor) -> Tensor:
    """`scores` float32 [N, vocab]. Returns float32 [N]. Scratch memory is bounded."""
    rows = max(1, _CHUNK_ELEMENTS // scores.shape[1])
    return torch.cat([chunk.logsumexp(dim=-1) for chunk in scores.split(rows)])

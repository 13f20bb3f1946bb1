"""Log-probabilities of given tokens: score[token] - logsumexp(scores), the entry of log-softmax without its table.

Bytes floor: scores read once, N x vocab x 4. Called by `engine.sampling`.
"""

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 24
"""Scores handled at once (64 MiB of float32): logsumexp needs a scratch copy of its input."""


def token_logprobs(scores: Tensor, tokens: Tensor) -> Tensor:
    """`scores` float32 [N, vocab], `tokens` int64 [N]. Returns float32 [N]. Scratch memory is bounded."""
    rows = max(1, _CHUNK_ELEMENTS // scores.shape[1])
    normalizer = torch.cat([chunk.logsumexp(dim=-1) for chunk in scores.split(rows)])
    return scores.gather(1, tokens.unsqueeze(1)).squeeze(1) - normalizer

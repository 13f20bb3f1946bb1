"""Repetition and frequency penalties over the tokens of a sequence, prompt and output alike.

    repetition (Keskar et al., "CTRL", 2019): s <- s / p where s >= 0, s * p where s < 0, for each id seen
    frequency  (OpenAI's API):                s <- s - f * (number of times the id was seen)

in this order. Counts come from the row's own history, never from padding.
Bytes floor: scores read and written, N x vocab x 8, plus the history, N x length x 4. Called by `engine.sampling`.
"""

import torch
from torch import Tensor


def count_tokens(history: Tensor, length: Tensor, vocab_size: int) -> Tensor:
    """How often each id occurs in each row's history.

    `history` int32 [N, max_len], `length` int64 [N]: the first `length` entries of a row are valid.
    Returns float32 [N, vocab_size] (exact below 2**24).
    """
    valid = torch.arange(history.shape[1], device=history.device) < length.unsqueeze(1)
    # The column behind the vocabulary takes what is not valid, and is cut off.
    index = torch.where(valid, history, vocab_size).to(torch.int64)
    counts = torch.zeros(history.shape[0], vocab_size + 1, dtype=torch.float32, device=history.device)
    return counts.scatter_add_(1, index, torch.ones_like(index, dtype=torch.float32))[:, :vocab_size]


def penalties(scores: Tensor, counts: Tensor, repetition: Tensor, frequency: Tensor) -> Tensor:
    """`scores` and `counts` float32 [N, vocab]; `repetition` (1: off) and `frequency` (0: off) float32 [N]."""
    factor = repetition.unsqueeze(1)
    repeated = torch.where(scores < 0, scores * factor, scores / factor)
    scores = torch.where(counts > 0, repeated, scores)
    return scores - frequency.unsqueeze(1) * counts

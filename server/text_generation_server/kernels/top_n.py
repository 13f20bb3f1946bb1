"""The n most likely tokens of a row for reporting, with every tie of the n-th.

Bytes floor: scores read once, N x vocab x 4. Called by `engine.sampling`.
"""

from torch import Tensor


def top_n_mask(scores: Tensor, n: Tensor, largest_n: int) -> Tensor:
    """Which ids score at least as much as the row's n-th highest; filtered ids (-inf) never do.

    `scores` float32 [N, vocab]; `n` int64 [N], >= 1; `largest_n` >= n.max(). Returns bool [N, vocab].
    """
    vocab_size = scores.shape[1]
    best = scores.topk(min(largest_n, vocab_size), dim=-1).values
    threshold = best.gather(1, n.clamp(max=vocab_size).unsqueeze(1) - 1)
    return (scores >= threshold) & scores.isfinite()

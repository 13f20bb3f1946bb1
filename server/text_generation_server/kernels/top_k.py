"""Top-k: keeps the scores that are at least the k-th highest, ties included, and sets the others to -inf.

Bytes floor: scores read and written, N x vocab x 8. Called by `engine.sampling`.
"""

from torch import Tensor


def top_k_filter(scores: Tensor, k: Tensor, largest_k: int) -> Tensor:
    """`scores` float32 [N, vocab]; `k` int64 [N], >= 1; `largest_k` >= k.max(), known to the caller without a copy.

    A k above the vocabulary keeps everything. Returns new scores.
    """
    vocab_size = scores.shape[1]
    best = scores.topk(min(largest_k, vocab_size), dim=-1).values
    threshold = best.gather(1, k.clamp(max=vocab_size).unsqueeze(1) - 1)
    return scores.masked_fill(scores < threshold, float("-inf"))

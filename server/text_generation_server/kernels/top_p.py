"""Top-p, or nucleus (Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020).

Keeps the smallest set of best tokens whose probability reaches p; never fewer than one. Computed from the other end:
in ascending order, what has a cumulative probability of at most 1 - p goes.

Bytes floor: scores read and written, N x vocab x 8; the sort of this implementation costs a multiple.
Called by `engine.sampling`.
"""

from torch import Tensor


def top_p_filter(scores: Tensor, p: Tensor) -> Tensor:
    """`scores` float32 [N, vocab], `p` float32 [N] in (0, 1]. Returns new scores with -inf where dropped."""
    ordered, order = scores.sort(dim=-1, stable=True)
    drop = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1.0 - p).unsqueeze(1)
    drop[:, -1] = False
    return scores.masked_fill(drop.scatter(1, order, drop), float("-inf"))

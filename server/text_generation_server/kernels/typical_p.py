"""Locally typical sampling (Meister et al., "Locally Typical Sampling", TACL 2023).

Orders tokens by |-log p(v) - H|, the distance of their information from the entropy H, and keeps the nearest until
their probability reaches the mass; never fewer than one.

Bytes floor: scores read and written, N x vocab x 8; the sort of this implementation costs a multiple.
Called by `engine.sampling`.
"""

from torch import Tensor


def typical_filter(scores: Tensor, mass: Tensor) -> Tensor:
    """`scores` float32 [N, vocab], `mass` float32 [N] in (0, 1]. Returns new scores with -inf where dropped."""
    logprobs = scores.log_softmax(dim=-1)
    # nansum: 0 * -inf of tokens that an earlier filter dropped counts as nothing.
    entropy = -(logprobs.exp() * logprobs).nansum(dim=-1, keepdim=True)
    distance, order = (-logprobs - entropy).abs().sort(dim=-1, stable=True)
    cumulative = scores.softmax(dim=-1).gather(1, order).cumsum(dim=-1)
    last_kept = (cumulative < mass.unsqueeze(1)).sum(dim=-1, keepdim=True).clamp(max=scores.shape[1] - 1)
    threshold = distance.gather(1, last_kept)
    drop = distance > threshold
    return scores.masked_fill(drop.scatter(1, order, drop), float("-inf"))

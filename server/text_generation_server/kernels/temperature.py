"""Temperature: s <- (s - max(s)) / t.

The shift by the row's maximum leaves every probability as it is, and no temperature can overflow the best score.
Bytes floor: scores read and written, N x vocab x 8. Called by `engine.sampling`.
"""

from torch import Tensor


def temperature_scale(scores: Tensor, temperature: Tensor) -> Tensor:
    """`scores` float32 [N, vocab], `temperature` float32 [N], > 0. Returns new scores, all <= 0."""
    return (scores - scores.amax(dim=-1, keepdim=True)) / temperature.unsqueeze(1)

"""Attention in both directions within segments of a sequence: views, or windows of them.

Segments of one length that follow each other are computed together, so an image with windows takes a few calls.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Segments:
    """Ranges that follow each other and cover a sequence."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """Raises ValueError for a length of 0."""
        if not lengths or min(lengths) < 1:
            raise ValueError("a segment has at least one element")
        self._runs = [(length, length * len(list(equal))) for length, equal in groupby(lengths)]
        """The length of segments, and that of all in a row."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Turns [S, heads, head_dim] into the same; without `scale` the softmax scale is 1 / sqrt(head_dim)."""
        if len(self._runs) == 1:
            return _attend(q, k, v, self._runs[0][0], scale)
        qs, ks, vs = (each.split([total for _, total in self._runs]) for each in (q, k, v))
        lengths = [length for length, _ in self._runs]
        runs = zip(qs, ks, vs, lengths, strict=True)
        return torch.cat([_attend(*run, scale) for run in runs])


def _attend(q: Tensor, k: Tensor, v: Tensor, length: int, scale: float | None) -> Tensor:
    q, k, v = (each.unflatten(0, (-1, length)).transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1)

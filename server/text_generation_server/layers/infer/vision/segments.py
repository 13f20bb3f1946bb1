"""Attention in both directions within segments of a sequence: views, or windows of them.

Segments of one length are computed together, so an image with windows takes a few calls: whole windows, and those at
its lower and right edges.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Segments:
    """Ranges that follow each other and cover a sequence."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        """Raises ValueError for a length of 0."""
        if not lengths or min(lengths) < 1:
            raise ValueError("a segment has at least one element")
        self._whole = lengths[0] if len(set(lengths)) == 1 else 0
        self._groups: list[tuple[int, Tensor]] = []
        if self._whole:
            return
        sizes = torch.tensor(lengths)
        starts = sizes.cumsum(0) - sizes
        for length in sorted(set(lengths)):
            places = starts[sizes == length][:, None] + torch.arange(length)
            self._groups.append((length, places.flatten().to(device)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        """Turns [S, heads, head_dim] into the same; without `scale` the softmax scale is 1 / sqrt(head_dim)."""
        if self._whole:
            return _attend(q, k, v, self._whole, scale)
        out = torch.empty_like(q)
        for length, places in self._groups:
            out[places] = _attend(q[places], k[places], v[places], length, scale)
        return out


def _attend(q: Tensor, k: Tensor, v: Tensor, length: int, scale: float | None) -> Tensor:
    q, k, v = (each.unflatten(0, (-1, length)).transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1)

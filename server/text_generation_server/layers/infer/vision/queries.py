"""Learned queries that attend to all patches of a view, each of which becomes a position."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ....config.vision import QuerySpec
from ...weights.vision import QueryWeights
from .functions import affine, normalised
from .order import ViewOrder


@dataclass(frozen=True)
class Queries:
    """As many queries as a view of its size has."""

    spec: QuerySpec
    weights: QueryWeights

    def forward(self, x: Tensor, view: ViewOrder) -> Tensor:
        """Turns the patches of a view, [P, width], into [queries, width]."""
        weights, count = self.weights, self.spec.counts[max(view.height, view.width)]
        k, v = affine(normalised(x, self.spec.norm, weights.norm), weights.kv).chunk(2, dim=-1)
        asked = weights.queries[:count]
        q, k, v = (each.unflatten(-1, (self.spec.heads, -1)).transpose(0, 1) for each in (asked, k, v))
        return affine(scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1), weights.out)

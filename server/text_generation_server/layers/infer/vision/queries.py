"""Learned queries that attend to all patches of a view, each of which becomes a position."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ....config.vision import QuerySpec
from ...weights.vision import QueryWeights
from .functions import affine, normalised
from .order import ViewOrder
from .positions import learned_positions, sinusoids


@dataclass(frozen=True)
class Queries:
    """As many queries as a view of its size has."""

    spec: QuerySpec
    weights: QueryWeights

    def forward(self, x: Tensor, view: ViewOrder) -> Tensor:
        """Turns the patches of a view, [P, width], into [queries, width]."""
        spec, weights = self.spec, self.weights
        x = normalised(x, spec.norm, weights.norm)
        placed = x if spec.placed is None else x + self._places(x.shape[-1], view, x.device).to(x.dtype)
        k = affine(placed if spec.placed == "keys" else x, weights.k)
        v = affine(placed if spec.placed == "values" else x, weights.v)
        asked = weights.queries[: spec.count(max(view.height, view.width))]
        q, k, v = (each.unflatten(-1, (spec.heads, -1)).transpose(0, 1) for each in (asked, k, v))
        return affine(scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1), weights.out)

    def _places(self, width: int, view: ViewOrder, device: torch.device) -> Tensor:
        """[P, width]: what tells patches where they are."""
        table, stored = self.spec.table, self.weights.positions
        if table is None or stored is None:
            return sinusoids(width, view, device)
        return learned_positions(table, stored, view)

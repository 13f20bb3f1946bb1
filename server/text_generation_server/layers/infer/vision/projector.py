"""A projector: from hidden states of a vision tower to hidden states of the decoder."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ....config.vision import LevelSpec, LinearSpec, TowerSpec
from ...weights.vision import LevelWeights, LinearWeights
from .functions import activated, affine, normalised
from .order import ViewOrder
from .queries import Queries


class Projector:
    """Joins patches to positions, and projects these."""

    def __init__(self, tower: TowerSpec, spec: LevelSpec, weights: LevelWeights) -> None:
        self._tower = tower
        self._spec = spec
        self._weights = weights

    def forward(self, states: Mapping[int, Tensor], views: Sequence[ViewOrder]) -> Tensor:
        """Turns the hidden states [S, tower's hidden] that it reads, by their numbers, into [rows, decoder's hidden],
        view by view, positions row by row.
        """
        spec, weights = self._spec, self._weights
        read = torch.cat([self._of_patches(states[number], views) for number in spec.reads], dim=-1)
        x = normalised(normalised(read, spec.last_norm, weights.last_norm), spec.norm, weights.norm)
        x = self._joined(_through(x, spec.of_patches, weights.of_patches), views)
        x = normalised(self._standardised(x), spec.joined_norm, weights.joined_norm)
        x = _through(x, spec.linears, weights.linears)
        return self._row_by_row(x, views)

    def _of_patches(self, x: Tensor, views: Sequence[ViewOrder]) -> Tensor:
        """Drops class tokens, where they take no position."""
        if not self._tower.class_token or self._spec.keeps_class:
            return x
        return torch.cat([part[1:] for part in x.split([view.count + 1 for view in views])])

    def _joined(self, x: Tensor, views: Sequence[ViewOrder]) -> Tensor:
        if (by_view := self._by_view()) is not None:
            parts = zip(x.split([view.count for view in views]), views, strict=True)
            return torch.cat([by_view(part, view) for part, view in parts])
        patches = self._tower.merge**2
        if patches == 1:
            return x
        blocks = x.unflatten(0, (-1, patches))
        if self._spec.join == "mean":
            return blocks.mean(1)
        return (blocks.transpose(1, 2) if self._spec.join == "channels" else blocks).flatten(1)

    def _by_view(self) -> Callable[[Tensor, ViewOrder], Tensor] | None:
        """What makes positions of the patches of a view; None where patches are joined."""
        if self._spec.queries is not None and self._weights.queries is not None:
            return Queries(self._spec.queries, self._weights.queries).forward
        return self._halved if self._weights.halvings else None

    def _halved(self, x: Tensor, view: ViewOrder) -> Tensor:
        """Turns the patches of a view into its positions by convolutions."""
        grid = x[view.patches.argsort().to(x.device)].t().unflatten(1, (view.height, view.width))[None]
        for each in self._weights.halvings:
            grid = functional.conv2d(grid, each.weight, each.bias, stride=2, padding=1)
        return grid[0].flatten(1).t()

    def _standardised(self, x: Tensor) -> Tensor:
        if self._spec.factor == 1.0 and self._weights.standard is None:
            return x
        wide = x.float() * self._spec.factor
        if self._weights.standard is not None:
            bias, scale = self._weights.standard
            wide = (wide - bias.float()) * scale.float()
        return wide.to(x.dtype)

    def _row_by_row(self, x: Tensor, views: Sequence[ViewOrder]) -> Tensor:
        if all(view.positions is None for view in views):
            return x
        out = torch.empty_like(x)
        first = 0
        for view in views:
            if view.positions is not None:
                count = view.positions.numel()
                out[first + view.positions.to(x.device)] = x[first : first + count]
                first += count
        return out


def _through(x: Tensor, specs: Sequence[LinearSpec], weights: Sequence[LinearWeights]) -> Tensor:
    for spec, its_weights in zip(specs, weights, strict=True):
        x = _projected(x, spec, its_weights)
    return x


def _projected(x: Tensor, spec: LinearSpec, weights: LinearWeights) -> Tensor:
    x = affine(x, weights.matrix)
    gate = None
    if spec.gate:
        gate, x = x.chunk(2, dim=-1)
    x = normalised(x, spec.norm, weights.norm)
    if spec.activation is None:
        return x
    return activated(x, spec.activation) if gate is None else activated(gate, spec.activation) * x

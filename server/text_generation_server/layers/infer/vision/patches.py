"""From the bytes of a view to the first hidden states of its patches."""

import torch
from torch import Tensor

from ....config.pixels import PixelSpec
from ....config.vision import TowerSpec
from ...weights.vision import PatchWeights
from .functions import affine, normalised
from .order import ViewOrder
from .positions import learned_positions


class Patches:
    """Normalises pixels by a table of 3 x 256 numbers in the model's type, and projects patches of them."""

    def __init__(self, tower: TowerSpec, pixels: PixelSpec, weights: PatchWeights) -> None:
        self._tower = tower
        self._weights = weights
        self._table = _table(pixels).to(weights.patch.weight).flatten()
        self._channels = (torch.arange(3, device=self._table.device) * 256).view(1, 3, 1)

    def forward(self, view: Tensor, order: ViewOrder) -> Tensor:
        """Turns uint8 [height, width, 3] into [P, hidden], with one more row before them for a class token."""
        tower, weights, side = self._tower, self._weights, self._tower.patch
        pixels = view[: order.height * side, : order.width * side].reshape(order.height, side, order.width, side, 3)
        patches = pixels.permute(0, 2, 4, 1, 3).reshape(order.count, 3, side * side)[order.patches.to(view.device)]
        hidden = affine(self._table[patches.int() + self._channels].flatten(1), weights.patch)
        hidden = normalised(hidden, tower.patch_norm, weights.patch_norm)
        table, positions = weights.positions, tower.positions
        if table is not None and positions is not None:
            before = 1 if tower.class_token else 0
            hidden = hidden + learned_positions(positions, table[before:], order)
        if weights.class_token is not None:
            token = weights.class_token if table is None else weights.class_token + table[0]
            hidden = torch.cat([token[None], hidden])
        return normalised(hidden, tower.first_norm, weights.first_norm)


def _table(spec: PixelSpec) -> Tensor:
    """Returns float32 [3, 256], with the rounding of the processors of Transformers."""
    if spec.coarse:
        scaled = torch.arange(256, dtype=torch.bfloat16) * spec.scale
        mean, std = (torch.tensor(each, dtype=torch.bfloat16)[:, None] for each in (spec.mean, spec.std))
        return ((scaled - mean) / std).float()
    mean, std = (torch.tensor(each) * (1.0 / spec.scale) for each in (spec.mean, spec.std))
    return (torch.arange(256, dtype=torch.float32) - mean[:, None]) / std[:, None]

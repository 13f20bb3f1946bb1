"""Where a patch stands in its view: learned positions, sines and cosines, and the angles of rotary embedding."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ....config.vision import PositionSpec, VisionRopeSpec
from .order import ViewOrder

_COLUMNS_FIRST = ("quarters", "neighbours by half")
_SHARPNESS = -0.75
"""The free parameter of cubic convolution (Keys, 1981), as torch has it."""


def learned_positions(spec: PositionSpec, table: Tensor, view: ViewOrder) -> Tensor:
    """Returns [P, hidden] for the patches of a view. `table` is [rows of the spec, hidden]."""
    if (taps := _TAPS.get(spec.kind)) is not None:
        return _stretched(table, spec.side, view, taps(spec.side, view.height), taps(spec.side, view.width))
    rows, columns = view.rows, view.columns
    if spec.kind == "axes":
        return table[columns.to(table.device)] + table[(spec.side + rows).to(table.device)]
    if spec.kind == "buckets":
        rows, columns = _buckets(spec.side, view.height)[rows], _buckets(spec.side, view.width)[columns]
    return table[(rows * spec.side + columns).to(table.device)]


def _buckets(side: int, count: int) -> Tensor:
    """Returns the row of a table for each of `count` patches along a side. Rounding is that of Idefics in Transformers,
    with which the models were trained.
    """
    corners = torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    return torch.bucketize(torch.clamp(corners, max=1.0 - 1e-6), bounds, right=True)


_Taps = tuple[Tensor, Tensor]
"""Rows of a table that each patch along a side reads, [count, taps], and how much of each, float32 [count, taps]."""


def _linear(side: int, count: int) -> _Taps:
    return _between(torch.arange(count, dtype=torch.float32) * (side - 1) / max(count - 1, 1), side)


def _linear_corners(side: int, count: int) -> _Taps:
    return _between(((torch.arange(count, dtype=torch.float32) + 0.5) * side / count - 0.5).clamp(min=0), side)


def _between(at: Tensor, side: int) -> _Taps:
    first = torch.floor(at)
    rows = (first.long()[:, None] + torch.arange(2)).clamp(0, side - 1)
    return rows, torch.stack([1 - (at - first), at - first], dim=1)


def _cubic(side: int, count: int) -> _Taps:
    at = (torch.arange(count, dtype=torch.float32) + 0.5) * side / count - 0.5
    first, offsets, a = torch.floor(at), torch.arange(-1, 3), _SHARPNESS
    away = (at[:, None] - first[:, None] - offsets).abs()
    near = ((a + 2) * away - (a + 3)) * away**2 + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    rows = (first.long()[:, None] + offsets).clamp(0, side - 1)
    return rows, torch.where(away <= 1, near, far)


_TAPS: Mapping[str, Callable[[int, int], _Taps]] = {
    "bilinear": _linear,
    "bilinear corners": _linear_corners,
    "bicubic": _cubic,
}


def _stretched(table: Tensor, side: int, view: ViewOrder, down: _Taps, across: _Taps) -> Tensor:
    """Returns the sum of the rows of the table around each patch, each as much as its taps say, in float32."""
    (rows, row_parts), (columns, column_parts) = down, across
    total = torch.zeros(1, dtype=torch.float32, device=table.device)
    for i in range(rows.shape[1]):
        for j in range(columns.shape[1]):
            place = rows[view.rows, i] * side + columns[view.columns, j]
            share = row_parts[view.rows, i] * column_parts[view.columns, j]
            total = total + table[place.to(table.device)] * share.to(table.device)[:, None]
    return total.to(table.dtype)


def sinusoids(width: int, view: ViewOrder, device: torch.device) -> Tensor:
    """Returns sines and cosines of columns, then of rows, with falling frequencies (Vaswani et al., 2017), float32
    [P, width]. `width` is a multiple of 4.
    """
    quarter = width // 4
    frequencies = 1.0 / 10000 ** (torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
    across, down = (places.to(device)[:, None] * frequencies for places in (view.columns, view.rows))
    return torch.cat([across.sin(), across.cos(), down.sin(), down.cos()], dim=1)


def angles(spec: VisionRopeSpec, head_dim: int, view: ViewOrder) -> Tensor:
    """Returns the angle of each pair of a head, float32 [P, head_dim / 2]."""
    if spec.order == "thirds":
        return _of_thirds(spec, head_dim, view)
    if spec.order == "alternating":
        inverse = 1.0 / spec.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        of_rows, of_columns = inverse[0::2], inverse[1::2]
    else:
        half = head_dim // 2
        of_rows = of_columns = 1.0 / spec.theta ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
    down, across = (view.rows[:, None] + spec.first) * of_rows, (view.columns[:, None] + spec.first) * of_columns
    if spec.order == "neighbours":
        return torch.stack([across, down], dim=-1).flatten(1)
    return torch.cat([across, down] if spec.order in _COLUMNS_FIRST else [down, across], dim=1)


def _of_thirds(spec: VisionRopeSpec, head_dim: int, view: ViewOrder) -> Tensor:
    third = spec.third(head_dim)
    inverse = 1.0 / spec.theta ** (torch.arange(0, 2 * third, 2, dtype=torch.float32) / (2 * third))
    of_pairs = torch.zeros(view.count, head_dim // 2)
    of_pairs[:, third : 3 * third] = torch.cat([view.rows[:, None] * inverse, view.columns[:, None] * inverse], dim=1)
    return of_pairs

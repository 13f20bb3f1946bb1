"""Where a patch stands in its view: learned positions, and the angles of rotary embedding."""

import torch
from torch import Tensor

from ....config.vision import PositionSpec, VisionRopeSpec
from .order import ViewOrder


def learned_positions(spec: PositionSpec, table: Tensor, view: ViewOrder) -> Tensor:
    """Returns [P, hidden] for the patches of a view. `table` is [side * side, hidden]."""
    if spec.kind == "bilinear":
        return _stretched(table, spec.side, view)
    rows, columns = view.rows, view.columns
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


def _stretched(table: Tensor, side: int, view: ViewOrder) -> Tensor:
    """Returns the mean of the four rows around each patch, weighted by nearness; the corners of both grids meet."""
    rows_before, rows_part = _nearest(side, view.height)
    columns_before, columns_part = _nearest(side, view.width)
    row, down = rows_before[view.rows], rows_part[view.rows]
    column, across = columns_before[view.columns], columns_part[view.columns]
    total = torch.zeros(1, dtype=torch.float32, device=table.device)
    for rows, row_weight in ((row, 1 - down), (torch.clamp(row + 1, max=side - 1), down)):
        for columns, weight in ((column, 1 - across), (torch.clamp(column + 1, max=side - 1), across)):
            share = (row_weight * weight).to(table.device)
            total = total + table[(rows * side + columns).to(table.device)] * share[:, None]
    return total.to(table.dtype)


def _nearest(side: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns for each of `count` patches the row of the table before it, and how far on the way to the next one it
    is.
    """
    at = torch.arange(count, dtype=torch.float32) * (side - 1) / max(count - 1, 1)
    first = torch.floor(at)
    return first.long(), at - first


def angles(spec: VisionRopeSpec, head_dim: int, view: ViewOrder) -> Tensor:
    """Returns the angle of each pair of a head, float32 [P, head_dim / 2]: pairs of the row, then of the column."""
    if spec.alternating:
        inverse = 1.0 / spec.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        of_rows, of_columns = inverse[0::2], inverse[1::2]
    else:
        half = head_dim // 2
        of_rows = of_columns = 1.0 / spec.theta ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
    return torch.cat([view.rows[:, None] * of_rows, view.columns[:, None] * of_columns], dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs i and i + head_dim / 2 of [S, heads, head_dim] by [S, 1, head_dim / 2], in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

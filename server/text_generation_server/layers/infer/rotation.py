"""The rotary positions of a step, as operators take them: a table of cosines and sines, and each token's row of it."""

from typing import cast

import torch
from torch import Tensor

from ..rope import RopeTable
from .state import InferState


def angles(table: RopeTable, state: InferState) -> tuple[Tensor, Tensor]:
    """Returns `cos_sin` and `positions` of the operators that rotate.

    Where positions count along axes, the first call of a step gathers a table with one row for each new token, which
    all layers with the same rotary embedding read: no operator knows axes.
    """
    along = state.rope_positions
    if along is None:
        return table.cos_sin, state.positions
    if along.dim() == 1:
        return table.cos_sin, along
    if table not in state.made:
        state.made[table] = table.along_axes(along), torch.arange(along.shape[1], device=along.device)
    return cast("tuple[Tensor, Tensor]", state.made[table])

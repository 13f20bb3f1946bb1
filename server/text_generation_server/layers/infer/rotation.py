"""Where the new tokens of a step stand, as operators take it: a table of cosines and sines, and rows and slots."""

from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ..rope import RopeTable
from .state import InferState


def unrotated_tokens(table: RopeTable, state: InferState) -> kernels.NewTokens:
    """Returns the same where nothing is rotated, with one row of angles: for operators that read rows one after the
    other, and which a table of the longest context would cost much room.
    """

    def made() -> kernels.NewTokens:
        return kernels.NewTokens(table.cos_sin[:1], torch.zeros_like(state.positions), state.slots)

    return state.once((table, "unrotated"), made)


def new_tokens(table: RopeTable, state: InferState) -> kernels.NewTokens:
    """Returns the new tokens of the step with the angles of `table`. The first call of a step makes the record for all
    layers with the same rotary embedding.

    Where positions count along axes, it gathers a table with one row for each new token: no operator knows axes.
    """

    def made() -> kernels.NewTokens:
        along = state.rope_positions
        if along is None or along.dim() == 1:
            angles = table.cos_sin, state.positions if along is None else along
        else:
            angles = table.along_axes(along), torch.arange(along.shape[1], device=along.device)
        return kernels.NewTokens(*angles, state.slots)

    return state.once(table, made)


@dataclass(frozen=True)
class Angles:
    """Of each token, [T, rope_dim / 2] float32, contiguous."""

    cos: Tensor
    sin: Tensor

    def back(self) -> "Angles":
        """Those that turn back."""
        return Angles(self.cos, -self.sin)


def angles_at(table: RopeTable, positions: Tensor) -> Angles:
    """Returns the angles of positions [T] int64."""
    cos, sin = table.cos_sin.index_select(0, positions).chunk(2, dim=1)
    return Angles(cos.contiguous(), sin.contiguous())


def rotate_first(heads: Tensor, angles: Angles) -> None:
    """Rotates the first elements of each of `heads` [T, heads, head_dim] in place, in the order of `rotary_order`."""
    kernels.rotate_heads(heads[..., : 2 * angles.cos.shape[1]], angles.cos, angles.sin)

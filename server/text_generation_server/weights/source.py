"""The interface that layers load their weights through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """Indices `start` to `stop` of dimension `dim`."""

    dim: int
    start: int
    stop: int


class WeightSource(Protocol):
    """Named tensors, on the device and in the type of the model."""

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor `name`, which must have `shape`, or only a part of it. Raises ModelFilesError.

        `dtype`: another type than the model's. With uint8, bytes are read as they are, and must be stored as such.
        """
        ...

    def raw(
        self,
        name: str,
        part: Slice | None = None,
        shape: tuple[int, ...] | None = None,
        dtypes: Sequence[torch.dtype] = (),
    ) -> Tensor:
        """The tensor `name`, or only a part of it, on the device as it is stored: packed codes and their scales.
        Raises ModelFilesError, also where it has another shape or type than those that are given.
        """
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the stored tensor `name`, which is not read. Raises ModelFilesError."""
        ...

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Room for tensors that are read one by one, not filled."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        ...

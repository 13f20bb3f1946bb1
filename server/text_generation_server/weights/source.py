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
    entry: int | None = None
    """The one entry of the first dimension that is read; dimensions count without it."""


class WeightSource(Protocol):
    """Named tensors, on the device and in the type of the model."""

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Reads the tensor `name`, which must have `shape`, or a slice of it. `dtype` replaces the model's type; with
        uint8, the tensor must be stored as bytes. Raises ModelFilesError.
        """
        ...

    def raw(
        self,
        name: str,
        part: Slice | None = None,
        shape: tuple[int, ...] | None = None,
        dtypes: Sequence[torch.dtype] = (),
    ) -> Tensor:
        """Reads the tensor `name`, or a slice of it, in its stored type: packed codes and their scales. Raises
        ModelFilesError, also where its shape or type is not among those that are given.
        """
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of the stored tensor `name` without reading it. Raises ModelFilesError."""
        ...

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Allocates a tensor in the model's type, without values."""
        ...

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        ...

    def names(self) -> Sequence[str]:
        """Returns the names of all stored tensors; none where tensors are made."""
        ...

"""Weights without values: tensors of the meta device, which take no memory."""

import torch
from torch import Tensor

from .dummy import DummySource
from .source import Slice


class ShapeSource(DummySource):
    """Has what `DummySource` has, in the same shapes and types."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype, torch.device("meta"))

    def read(
        self,
        name: str,  # noqa: ARG002 - every tensor exists
        shape: tuple[int, ...],
        part: Slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """See `WeightSource`; never fails."""
        held = list(shape)
        if part is not None:
            held[part.dim] = part.stop - part.start
        return self.empty(tuple(held)) if dtype is None else self.empty(tuple(held)).to(dtype)

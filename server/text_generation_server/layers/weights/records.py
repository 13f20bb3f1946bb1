"""Tensors side by side in records of bytes, so that one copy moves all that one record holds of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 128
"""Bytes: fields begin where lines of memory do."""


@dataclass(frozen=True)
class Field:
    """What each record holds of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class RecordLayout:
    """Where fields lie in a record. Fields that follow each other have the same distances in every layout."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self.starts: list[int] = []
        """The first byte of each field."""
        self.nbytes = 0
        """The bytes of a record."""
        for each in fields:
            self.starts.append(self.nbytes)
            self.nbytes += -(-each.nbytes // _ALIGNMENT) * _ALIGNMENT

    def view(self, records: Tensor, index: int) -> Tensor:
        """Returns field `index` of records uint8 [n, nbytes]: [n, *shape], contiguous in each record."""
        field, start = self._fields[index], self.starts[index]
        return records[:, start : start + field.nbytes].view(field.dtype).unflatten(1, field.shape)

"""Tensors side by side in records of bytes, so that one copy moves all that one record holds of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
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

    def end_of(self, index: int) -> int:
        """Returns where the values of field `index` end."""
        return self.starts[index] + self._fields[index].nbytes

    def cuts(self, most: int) -> Iterator[range]:
        """Yields the fields in groups of neighbours, of at most so many bytes each unless a single field has more."""
        first = 0
        for index in range(len(self._fields)):
            if index > first and self.end_of(index) - self.starts[first] > most:
                yield range(first, index)
                first = index
        if self._fields:
            yield range(first, len(self._fields))

    def view(self, records: Tensor, index: int, start: int = 0) -> Tensor:
        """Returns field `index` of records uint8 [n, nbytes], from byte `start` of a record on: [n, *shape], contiguous
        in each record.
        """
        field, first = self._fields[index], self.starts[index] - start
        return records[:, first : first + field.nbytes].view(field.dtype).unflatten(1, field.shape)

    def array(self, data: Tensor, index: int, start: int = 0) -> NDArray[Any]:
        """Returns field `index` of one record of the host, uint8 from byte `start` of the record on: its `raw` numbers,
        of the shape of the field.
        """
        field, first = self._fields[index], self.starts[index] - start
        values = data.numpy()[first : first + field.nbytes]
        return values.view(f"i{field.dtype.itemsize}").reshape(field.shape)

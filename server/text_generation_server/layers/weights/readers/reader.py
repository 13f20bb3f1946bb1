"""Interface of the readers of stored matrices, and what quantised ones share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from ..blocks import RowBlock
from ..checkpoint import Matrices
from ..linear import Dense
from ..w8a8 import W8A8Linear
from ..weight_only import WeightOnlyLinear
from .codes import Codes

Single = Dense | W8A8Linear | WeightOnlyLinear
"""The `Linear`s that have one weight matrix each."""


@dataclass(frozen=True)
class Reader(ABC):
    """Reads a rank's shard of matrices of one scheme. `shape` is the shape of the whole stored matrix, [outputs,
    inputs]; `columns` are the inputs of the shard. Methods raise ModelFilesError. Readers of the same scheme are equal.
    """

    checkpoint: Matrices = field(compare=False)

    @abstractmethod
    def rows(self, blocks: Sequence[RowBlock], inputs: int) -> Sequence[Single]:
        """Reads rows of several stored matrices, stacked into as few matrices as their formats allow."""

    @abstractmethod
    def columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Single:
        """Reads columns of a stored matrix."""

    def ordered_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Single:
        """Reads columns for inputs that come in `input_order`; `columns` are places in that order."""
        return self.columns(name, shape, columns)

    @abstractmethod
    def dense_rows(self, block: RowBlock, inputs: int) -> Tensor:
        """Reads [rows, inputs] in the model's type."""

    @abstractmethod
    def dense_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        """Reads [outputs, columns] in the model's type."""

    def input_order(self, name: str, shape: tuple[int, int]) -> list[int] | None:  # noqa: ARG002 - few have one
        """Returns the order in which a matrix with act-order stores its inputs: which input comes first, second, and so
        on. None: it stores them in their own order.
        """
        return None

    def has_codes(self, name: str) -> bool:  # noqa: ARG002 - a reader of 16 bits knows
        """Whether the checkpoint has the matrix quantised, or random weights stand for one that has."""
        return False


class Quantised(Protocol):
    """Quantised weights with their scales."""

    def linear(self) -> Single:
        """Returns the `Linear` of these weights."""
        ...

    def codes(self) -> Codes:
        """Returns the codes for the MoE kernels. The inputs must begin with a group, and be in their own order."""
        ...

    def dequantised(self) -> Tensor:
        """Dequantises to [outputs, inputs] float32, with inputs in their own order."""
        ...


class QuantisedReader(Reader):
    """Reads matrices that run quantised."""

    @abstractmethod
    def read_rows(self, blocks: Sequence[RowBlock], inputs: int) -> Sequence[Quantised]:
        """Reads rows of several stored matrices, stacked into as few matrices as their formats allow."""

    @abstractmethod
    def read_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Quantised:
        """Reads columns of a stored matrix; for a `StoredReader`, they must be `readable`."""

    @abstractmethod
    def quantise(self, weights: Iterable[Tensor]) -> Quantised:
        """Rounds 16-bit matrices [outputs, inputs] to the nearest, one at a time, and stacks them."""

    @abstractmethod
    def begins_group(self, inputs: int, start: int) -> bool:
        """Whether the MoE kernels read groups of this scheme, and a group begins at input `start` of `inputs`."""

    @abstractmethod
    def reads_expert(self, name: str, shape: tuple[int, int], start: int) -> bool:
        """Whether the MoE kernels read codes of an expert that begins at input `start` of a stored matrix."""

    def rows(self, blocks: Sequence[RowBlock], inputs: int) -> Sequence[Single]:
        """See `Reader`."""
        return [each.linear() for each in self.read_rows(blocks, inputs)]

    def columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Single:
        """See `Reader`."""
        return self.read_columns(name, shape, columns).linear()


class StoredReader(QuantisedReader):
    """Reads matrices that the checkpoint has quantised."""

    @abstractmethod
    def readable(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> tuple[int, int]:
        """Returns the smallest range that `read_columns` can read and that contains `columns`."""

    def columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Single:
        """See `Reader`. A shard that divides groups is dequantised."""
        if self.readable(name, shape, columns) != columns:
            return Dense(self.dense_columns(name, shape, columns))
        return super().columns(name, shape, columns)

    def dense_rows(self, block: RowBlock, inputs: int) -> Tensor:
        """See `Reader`."""
        return self.read_rows([block], inputs)[0].dequantised().to(self.checkpoint.dtype)

    def dense_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        """See `Reader`."""
        (start, stop), read = columns, self.readable(name, shape, columns)
        weight = self.read_columns(name, shape, read).dequantised()[:, start - read[0] : stop - read[0]]
        return weight.to(self.checkpoint.dtype).contiguous()

    def reads_expert(self, name: str, shape: tuple[int, int], start: int) -> bool:
        """See `QuantisedReader`."""
        return self.begins_group(shape[1], start) and self.input_order(name, shape) is None

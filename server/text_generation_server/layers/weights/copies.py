"""16-bit copies of weight-only quantised matrices, for prefill and large decode batches.

GEMMs of few tokens are memory-bound: the fewer bits they read, the faster they are. GEMMs of many tokens are
compute-bound, on tensor cores that take 16 bits. Where memory is ample, they read a dequantised copy and reach the
speed of an unquantised model.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from .linear import Split
from .weight_only import WeightOnlyLinear


class PrefillCopies:
    """The copies that the matrices of a model can have; `make` makes them. Experts have none: they are most of a
    mixture, and each of them gets few tokens even of a large step.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype` is the type of the activations."""
        self._dtype = dtype
        self._matrices: list[WeightOnlyLinear] = []

    def note(self, weights: object) -> None:
        """Notes the weight-only matrices among the weights of a sublayer."""
        self._matrices += _weight_only(weights)

    @property
    def nbytes(self) -> int:
        """Bytes that all copies take, or would take."""
        return sum(matrix.outputs * matrix.inputs for matrix in self._matrices) * self._dtype.itemsize

    def make(self) -> None:
        """Makes the copies, which steps use from then on. Call it before graphs are captured."""
        for matrix in self._matrices:
            matrix.copy = matrix.dequantised(self._dtype)


def _weight_only(weights: object) -> Iterator[WeightOnlyLinear]:
    if isinstance(weights, WeightOnlyLinear):
        yield weights
    elif isinstance(weights, Split):
        for part in weights.parts:
            yield from _weight_only(part)
    elif is_dataclass(weights):
        for each in fields(weights):
            yield from _weight_only(getattr(weights, each.name))

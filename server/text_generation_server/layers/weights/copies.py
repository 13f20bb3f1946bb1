"""16-bit copies of weight-only quantised matrices, for steps of many tokens.

GEMMs of few tokens are memory-bound: the fewer bits they read, the faster. Those of many tokens are compute-bound, on
tensor cores that take 16 bits: where memory is ample, they multiply by a copy, at the speed of an unquantised model.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from .linear import Split
from .weight_only import WeightOnlyLinear


class Copies:
    """Those that the matrices of a model can have; none are there until `make`. Experts of mixtures have none: they are
    most of such a model, and a step of many tokens has few for each of them.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: that of the inputs."""
        self._dtype = dtype
        self._matrices: list[WeightOnlyLinear] = []

    def note(self, weights: object) -> None:
        """Finds the matrices among what a part of a layer holds."""
        self._matrices += _weight_only(weights)

    @property
    def nbytes(self) -> int:
        """What all take, or would take."""
        return sum(matrix.outputs * matrix.inputs for matrix in self._matrices) * self._dtype.itemsize

    def make(self) -> None:
        """From now on steps use them. Call it before graphs are captured."""
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

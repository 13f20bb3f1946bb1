"""16-bit copies of weight-only quantised matrices, for steps of many tokens.

Few tokens are faster the fewer bits are read. Many tokens are bound by matrix units, which want 16 bits: where memory
is ample, they multiply by a copy that has them, at the speed of a model that was never quantised.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from .grouped import Grouped
from .linear import Split


class Copies:
    """Those that the matrices of a model can have; none are there until `make`. Experts of mixtures have none: they are
    most of such a model, and a step of many tokens has few for each of them.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: that of the inputs."""
        self._dtype = dtype
        self._matrices: list[Grouped] = []

    def note(self, weights: object) -> None:
        """Finds the matrices among what a part of a layer holds."""
        self._matrices += _grouped(weights)

    @property
    def nbytes(self) -> int:
        """What all take, or would take."""
        return sum(matrix.outputs * matrix.inputs for matrix in self._matrices) * self._dtype.itemsize

    def make(self) -> None:
        """From now on steps use them. Call it before graphs are captured."""
        for matrix in self._matrices:
            matrix.copy = matrix.dequantised(self._dtype)


def _grouped(weights: object) -> Iterator[Grouped]:
    if isinstance(weights, Grouped):
        yield weights
    elif isinstance(weights, Split):
        for part in weights.parts:
            yield from _grouped(part)
    elif is_dataclass(weights):
        for each in fields(weights):
            yield from _grouped(getattr(weights, each.name))

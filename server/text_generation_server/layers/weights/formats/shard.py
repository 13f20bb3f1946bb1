"""The shard of a stored matrix that a rank reads, and the checks that every stored tensor must pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import ModelFilesError
from ....weights import Slice, WeightSource

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class MatrixShard:
    """A range of rows (outputs) and a range of columns (inputs) of the matrix of module `name`.

    With act-order (`act_order.py`), columns are places in that order.
    """

    source: WeightSource
    name: str
    shape: tuple[int, int]
    """Outputs and inputs of the whole matrix."""
    rows: tuple[int, int]
    columns: tuple[int, int]

    @classmethod
    def whole(cls, source: WeightSource, name: str, shape: tuple[int, int]) -> "MatrixShard":
        """Returns the whole matrix."""
        return cls(source, name, shape, (0, shape[0]), (0, shape[1]))

    @property
    def count(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def has(self, suffix: str) -> bool:
        """Whether the module has this tensor."""
        return self.source.has(f"{self.name}.{suffix}")

    def stored_shape(self, suffix: str) -> tuple[int, ...]:
        """Returns the shape of a tensor of the module. Raises ModelFilesError where there is none."""
        return self.source.shape(f"{self.name}.{suffix}")

    def read(
        self, suffix: str, shape: tuple[int, ...], types: Sequence[torch.dtype], *cuts: tuple[int, int] | None
    ) -> Tensor:
        """Reads a tensor of the module, which must be stored with this shape in one of these types. `cuts` has start
        and end along each dimension, or None for all of it. Raises ModelFilesError.
        """
        wanted = [(dim, cut) for dim, cut in enumerate(cuts) if cut is not None and cut != (0, shape[dim])]
        # Files are sliced along one dimension; the device slices along the others.
        first = Slice(wanted[0][0], *wanted[0][1]) if wanted else None
        tensor = self.source.raw(f"{self.name}.{suffix}", first, shape, types)
        for dim, (start, stop) in wanted[1:]:
            tensor = tensor.narrow(dim, start, stop - start)
        return tensor

    def read_scales(self, suffix: str, shape: tuple[int, ...], *cuts: tuple[int, int] | None) -> Tensor:
        """As `read`, of any floating type, as float32. Raises ModelFilesError also for numbers that scale nothing."""
        return self.finite(suffix, self.read(suffix, shape, FLOATS, *cuts).float())

    def finite(self, suffix: str, scales: Tensor) -> Tensor:
        """`scales`, of a tensor of the module. Raises ModelFilesError for numbers that scale nothing."""
        if not bool(scales.isfinite().all()):
            raise self.error(suffix, "holds scales that are infinite or not a number")
        return scales

    def error(self, suffix: str, fact: str) -> ModelFilesError:
        """Returns the error for a tensor of the module."""
        return ModelFilesError(f"tensor `{self.name}.{suffix}` {fact}")


@dataclass(frozen=True)
class Span:
    """The groups of a range of inputs."""

    size: int
    """Inputs of a group."""
    count: int
    """Groups of the whole matrix."""
    cut: tuple[int, int]
    """The first group of the range, and the end."""
    offset: int
    """Inputs of the first group that lie before the range."""

    @classmethod
    def of(cls, inputs: int, group_size: int, columns: tuple[int, int]) -> "Span":
        """Returns the groups of `columns`. A `group_size` of 0 or less makes all inputs one group."""
        start, stop = columns
        if group_size <= 0 or group_size >= inputs:
            # A shard of one group needs no alignment.
            return cls(stop - start, 1, (0, 1), 0)
        first = start // group_size
        return cls(group_size, -(-inputs // group_size), (first, -(-stop // group_size)), start - first * group_size)

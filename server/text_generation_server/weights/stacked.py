"""A source in which one tensor has the same matrix of all experts of a layer, as if each expert had its own."""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .source import Slice, WeightSource

_EXPERT = ".{expert}"


class StackedSource(WeightSource):
    """Entry 3 of `x.weight` is `x.3.weight` here, and likewise of tensors beside the weight."""

    def __init__(self, source: WeightSource, templates: Sequence[str], experts: int) -> None:
        """`templates` are names of matrices of experts, which end with `.{expert}`."""
        self._source = source
        self._experts = experts
        modules = "|".join(re.escape(each.removesuffix(_EXPERT)) for each in templates)
        self._pattern = re.compile(rf"(.*(?:{modules}))\.(\d+)(\.\w+)")

    def _entry(self, name: str) -> tuple[str, int] | None:
        """The name of the tensor of all experts, and the number of the expert; None: the name is of no expert."""
        found = self._pattern.fullmatch(name)
        return None if found is None else (f"{found[1]}{found[3]}", int(found[2]))

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `WeightSource`."""
        if (entry := self._entry(name)) is None:
            return self._source.read(name, shape, part, dtype)
        stack, number = entry
        return self._source.read(stack, (self._experts, *shape), _of_entry(number, part, shape), dtype)

    def raw(
        self,
        name: str,
        part: Slice | None = None,
        shape: tuple[int, ...] | None = None,
        dtypes: Sequence[torch.dtype] = (),
    ) -> Tensor:
        """See `WeightSource`."""
        if (entry := self._entry(name)) is None:
            return self._source.raw(name, part, shape, dtypes)
        stack, number = entry
        whole = None if shape is None else (self._experts, *shape)
        one = _of_entry(number, part, self.shape(name) if shape is None else shape)
        return self._source.raw(stack, one, whole, dtypes)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `WeightSource`."""
        entry = self._entry(name)
        return self._source.shape(name) if entry is None else self._source.shape(entry[0])[1:]

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """See `WeightSource`."""
        return self._source.empty(shape)

    def has(self, name: str) -> bool:
        """See `WeightSource`."""
        entry = self._entry(name)
        return self._source.has(name if entry is None else entry[0])

    def names(self) -> Sequence[str]:
        """See `WeightSource`."""
        return self._source.names()


def _of_entry(entry: int, part: Slice | None, shape: tuple[int, ...]) -> Slice:
    """The same slice, or all, of an entry of this shape."""
    return Slice(0, 0, shape[0] if shape else 0, entry) if part is None else replace(part, entry=entry)

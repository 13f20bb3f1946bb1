"""A source in which quantised matrices of all experts of a layer lie in two tensors, as if each expert had its own.

One tensor has gate and up, gate first, the other has down, and likewise of the scales beside them. Those are called
`gate_up_proj_weight_scale` by modelopt, `gate_up_proj_scale_inv` or `gate_up_proj_scale` by Transformers, and
`gate_up_proj.weight_scale` by compressed-tensors. With `transposed` inputs come before outputs, as in Llama 4.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..errors import ModelFilesError
from .source import Slice, WeightSource

STACK_SCALES = ("_weight_scale", "_scale_inv", "_scale", ".weight_scale", ".weight_scale_inv")
"""What follows the name of a stack that is quantised in the names of its scales."""


@dataclass(frozen=True)
class ExpertStacks:
    """What the matrices of an expert are called, and the tensors that have those of all."""

    gate: str
    """As the next two, with `{expert}` for the expert's number."""
    up: str
    down: str
    gate_up_stack: str
    down_stack: str
    experts: int
    transposed: bool


@dataclass(frozen=True)
class _Entry:
    """A tensor of one expert."""

    stack: str
    """The stored tensor."""
    number: int
    """The expert."""
    half: int | None
    """0 for gate and 1 for up, which share a stack."""


@dataclass(frozen=True)
class _Place:
    """Where a matrix is in the entry of its expert."""

    rows: int
    """The dimension of the outputs."""
    first: int
    shape: tuple[int, int]


class ExpertStacksSource(WeightSource):
    """Entry 3 of `experts.gate_up_proj` has `experts.3.gate_proj.weight` and `experts.3.up_proj.weight` here."""

    def __init__(self, source: WeightSource, stacks: ExpertStacks) -> None:
        self._source, self._stacks = source, stacks
        matrices = ((stacks.gate, stacks.gate_up_stack, 0), (stacks.up, stacks.gate_up_stack, 1))
        self._matrices = [
            (_pattern(template), stack, half)
            for template, stack, half in (*matrices, (stacks.down, stacks.down_stack, None))
        ]

    def _entry(self, name: str) -> _Entry | None:
        """None: the name is of no expert."""
        for pattern, stack, half in self._matrices:
            if (found := pattern.fullmatch(name)) is not None:
                names = _names(f"{found[1]}{stack}", found[3])
                return _Entry(next(filter(self._source.has, names), names[0]), int(found[2]), half)
        return None

    def _place(self, entry: _Entry) -> _Place | None:
        """None: it is a number. Raises ModelFilesError."""
        stored = self._source.shape(entry.stack)
        one = stored[1:] if len(stored) != 2 or stored[1] <= 2 else (stored[1], 1)
        if prod(stored) == 1 or (stored[0] == self._stacks.experts and one in ((), (1,), (1, 1), (2,))):
            return None
        # Scales of rows may stand the other way than the matrices.
        rows = 1 if self._stacks.transposed and len(one) == 2 and one[1] > 1 else 0
        halves = 1 if entry.half is None else 2
        if stored[0] != self._stacks.experts or len(one) != 2 or one[rows] % halves:
            raise ModelFilesError(
                f"tensor `{entry.stack}` has shape {list(stored)}, which is not that of {self._stacks.experts} experts"
            )
        size = one[rows] // halves
        return _Place(rows, (entry.half or 0) * size, (size, one[1 - rows]))

    def _read(self, entry: _Entry, part: Slice | None, read: Callable[[str, Slice | None], Tensor]) -> Tensor:
        place = self._place(entry)
        if place is None:
            return self._number(entry, read)
        cut = part is not None and part.dim == 0
        start, stop = (part.start, part.stop) if part is not None and cut else (0, place.shape[0])
        tensor = read(entry.stack, Slice(place.rows, place.first + start, place.first + stop, entry.number))
        tensor = tensor.t().contiguous() if place.rows else tensor.view(stop - start, -1)
        return tensor if part is None or cut else tensor[:, part.start : part.stop].contiguous()

    def _number(self, entry: _Entry, read: Callable[[str, Slice | None], Tensor]) -> Tensor:
        """That of all experts, of one, or of gate or up of one."""
        stored = self._source.shape(entry.stack)
        if prod(stored) == 1:
            return read(entry.stack, None).view(())
        values = read(entry.stack, Slice(0, 0, stored[1] if len(stored) > 1 else 0, entry.number)).flatten()
        return values[(entry.half or 0) % len(values)]

    def read(
        self, name: str, shape: tuple[int, ...], part: Slice | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """See `WeightSource`."""
        if (entry := self._entry(name)) is None:
            return self._source.read(name, shape, part, dtype)
        self._check(name, entry, shape)
        whole = self._source.shape(entry.stack)
        return self._read(entry, part, lambda stack, cut: self._source.read(stack, whole, cut, dtype))

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
        if shape is not None:
            self._check(name, entry, shape)
        return self._read(entry, part, lambda stack, cut: self._source.raw(stack, cut, dtypes=dtypes))

    def _check(self, name: str, entry: _Entry, shape: tuple[int, ...]) -> None:
        if (found := self.shape(name)) != shape:
            raise ModelFilesError(
                f"tensor `{entry.stack}` has shape {list(self._source.shape(entry.stack))}, of which each expert has "
                f"{list(found)}, but config.json asks for {list(shape)}"
            )

    def shape(self, name: str) -> tuple[int, ...]:
        """See `WeightSource`."""
        if (entry := self._entry(name)) is None:
            return self._source.shape(name)
        place = self._place(entry)
        return () if place is None else place.shape

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """See `WeightSource`."""
        return self._source.empty(shape)

    def has(self, name: str) -> bool:
        """See `WeightSource`."""
        if (entry := self._entry(name)) is None:
            return self._source.has(name)
        # compressed-tensors has the shape of a matrix beside it; that of a stack is of no matrix.
        return not name.endswith(".weight_shape") and self._source.has(entry.stack)

    def names(self) -> Sequence[str]:
        """See `WeightSource`."""
        return self._source.names()


def _pattern(template: str) -> re.Pattern[str]:
    """Of names of tensors of such matrices: what is before, the expert's number, and the suffix."""
    before, after = map(re.escape, template.split("{expert}"))
    return re.compile(rf"(.*){before}(\d+){after}\.(.+)")


def _names(stack: str, suffix: str) -> tuple[str, ...]:
    """Names that the tensor of all experts may have, for the suffix of one expert's."""
    if suffix == "weight":
        return stack, f"{stack}.weight"
    return f"{stack}.{suffix}", f"{stack}_{suffix}", f"{stack}_{suffix.removeprefix('weight_')}"

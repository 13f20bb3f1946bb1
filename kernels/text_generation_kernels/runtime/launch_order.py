"""Check of the order of launches: whether a kernel reads, before it waits, what an earlier kernel may still be writing.

With programmatic dependent launch (PDL) a kernel starts while the previous one runs, or several, and so may read only
what none of them writes. Each `Launcher` says what its kernel reads early, what it writes, and when it launches
dependents. In the compile dry run of warm-up, which launches what serving launches, a `LaunchOrder` follows the
launches; steps that are served have none.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Dependents = Literal["before the wait", "after the wait", "at the end"]
"""When a kernel launches dependents early: before it has waited for the previous kernel, so that the next kernel starts
while both run; after it; or not at all.
"""
T = TypeVar("T")


class LaunchOrderError(RuntimeError):
    """A kernel reads early what an earlier one may still be writing: results would depend on which one is faster."""


class Pdl(NamedTuple):
    """What a kernel says about programmatic dependent launch.

    Operands are parameters, without `_ptr` and `_tiles`. `operand:part` is some of its elements; parts of one tensor do
    not overlap within a step: the newest positions of a cache and the older ones, the rows of one run and of another.
    """

    kernel: str
    reads_early: tuple[str, ...] = ()
    """Operands that it reads before it waits for the previous kernel."""
    writes: tuple[str, ...] = ()
    """Operands that it writes, but those that it has stored before it launches dependents."""
    dependents: Dependents = "at the end"


class _Written(NamedTuple):
    """A tensor that a kernel may still be writing."""

    kernel: str
    operand: str
    tensor: Tensor


class LaunchOrder(TorchDispatchMode):
    """Follows launches, and operators of torch, whose kernels neither start early nor launch dependents early."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished: dict[int, list[_Written]] = {}
        """By stream: what kernels write that may still run when the next one starts."""
        self._kernels: dict[Any, bool] = {}
        """Whether operators of torch have a kernel."""

    def launched(self, pdl: Pdl, operands: Sequence[tuple[str, Tensor]]) -> None:
        """Notes a launch with these tensors. Raises LaunchOrderError."""
        stream, tensors = _stream(), dict(operands)
        before = self._unfinished.get(stream, [])
        if before:
            for operand, tensor in _named(pdl.reads_early, tensors):
                _check(pdl.kernel, operand, tensor, before)
        written = [_Written(pdl.kernel, *each) for each in _named(pdl.writes, tensors)]
        # A kernel that has waited launches its dependents when all kernels before it are finished.
        kept = {"before the wait": [*before, *written], "after the wait": written, "at the end": []}
        self._unfinished[stream] = kept[pdl.dependents]

    def alternatives(self, each: Iterable[T]) -> Iterator[T]:
        """Yields choices of which a step launches one, while a dry run launches all: each follows what was before."""
        before = dict(self._unfinished)
        after: dict[int, list[_Written]] = {}
        for choice in each:
            self._unfinished = dict(before)
            yield choice
            for stream, written in self._unfinished.items():
                after.setdefault(stream, []).extend(written)
        self._unfinished = after or before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls an operator. Its kernel, if it has one, starts when all before it are finished, and ends before the
        next one starts.
        """
        if func not in self._kernels:
            self._kernels[func] = _has_kernel(func)
        if self._kernels[func]:
            self._unfinished[_stream()] = []
        return func(*args, **(kwargs or {}))


def _check(kernel: str, operand: str, tensor: Tensor, before: Iterable[_Written]) -> None:
    name, _, part = operand.partition(":")
    first, stop = _extent(tensor)
    for written in before:
        written_first, written_stop = _extent(written.tensor)
        are_apart = part and ":" in written.operand
        if written_first < stop and first < written_stop and not are_apart:
            raise LaunchOrderError(
                f"{kernel} reads `{name}` before it waits for previous kernels, and {written.kernel}, launched before "
                f"it, may still be writing it as `{written.operand.partition(':')[0]}`: between them must be a kernel "
                "that launches dependents after it has waited (docs/kernels.md)"
            )


def _named(names: Iterable[str], tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        tensor = tensors.get(name.partition(":")[0])
        if tensor is not None and tensor.numel():
            yield name, tensor


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses from the first element of a tensor, which has some, to behind its last one."""
    first = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0


def _has_kernel(func: Any) -> bool:
    """Whether an operator of torch launches kernels: not where its result is a view or uninitialised memory."""
    schema = func._schema
    is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    return not is_view and "empty" not in schema.name

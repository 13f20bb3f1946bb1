"""Compares what interpreted kernels read, write and launch with what their launchers say of it (`Launcher.pdl`)."""

# pyright: basic
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime import interpreter

from text_generation_kernels.runtime import launch


class Observed:
    """A launch that the interpreter runs, one thread block after the other."""

    def __init__(self, launcher: launch.Launcher, pointers: tuple[Tensor | None, ...], tiles: tuple[Any, ...]) -> None:
        self._pdl = launcher.pdl
        names = [name.removesuffix("_ptr") for name in launcher._kernel.arg_names[len(tiles) :]]
        self._tensors = [(name, each) for name, each in zip(names, pointers, strict=False) if each is not None]
        self.waited = self.launched = False

    def loaded(self, addresses: np.ndarray, mask: np.ndarray) -> None:
        """Before the wait, loads are of operands that the launcher names."""
        if not self.waited:
            self._check("reads", addresses, mask, self._pdl.reads_early)

    def stored(self, addresses: np.ndarray, mask: np.ndarray) -> None:
        """What is stored before dependents are launched after the wait needs no name: they see it."""
        if self._pdl.dependents == "before the wait" or self.launched:
            self._check("writes", addresses, mask, self._pdl.writes)

    def launches(self) -> None:
        """Dependents are launched no earlier than the launcher says."""
        said = self._pdl.dependents
        assert said == "before the wait" or (self.waited and said == "after the wait"), f"{self._pdl} launches earlier"
        self.launched = True

    def _check(self, does: str, addresses: np.ndarray, mask: np.ndarray, said: tuple[str, ...]) -> None:
        touched = np.asarray(addresses)[np.broadcast_to(np.asarray(mask), np.shape(addresses)).astype(bool)]
        if not touched.size:
            return
        first, last = int(touched.min()), int(touched.max())
        names = {name for name, tensor in self._tensors if _contains(tensor, first) or _contains(tensor, last)}
        # Other addresses are of the memory of other ranks.
        operands = {each.partition(":")[0] for each in said}
        assert not names or names & operands, f"{self._pdl} {does} {names} before the wait, or in spite of what it says"


def _contains(tensor: Tensor, address: int) -> bool:
    first = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > 0 and first <= address < first + (last + 1) * tensor.element_size()


@contextmanager
def compared_pdl() -> Iterator[None]:
    """Launches inside fail where a kernel does what its launcher does not say."""
    current: list[Observed] = []
    builder, function = interpreter.InterpreterBuilder, interpreter.InterpretedFunction
    load, store, add = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    grid, call, run = builder.set_grid_idx, function.__call__, launch.Launcher.__call__

    def loading(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        for each in current:
            each.loaded(pointers.data, mask.data)
        return load(self, pointers, mask, *rest)

    def storing(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        for each in current:
            each.stored(pointers.data, mask.data)
        return store(self, pointers, value, mask, *rest)

    def adding(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        for each in current:
            each.stored(pointers.data, mask.data)
        return add(self, operation, pointers, value, mask, *rest)

    def beginning(self: Any, *place: int) -> None:
        for each in current:
            each.waited = each.launched = False
        grid(self, *place)

    def calling(self: Any, *arguments: Any, **constants: Any) -> Any:
        for each in current:
            if self.fn is launch.wait_for_previous.fn:
                each.waited = True
            elif self.fn is launch.launch_dependents.fn:
                each.launches()
        return call(self, *arguments, **constants)

    def running(self: launch.Launcher, blocks: Any, pointers: Any, sizes: Any = (), values: Any = (), tiles: Any = (),
                /, **constants: Any) -> None:  # fmt: skip
        if "PDL" in self._kernel.arg_names:
            current.append(Observed(self, pointers, tiles))
        try:
            run(self, blocks, pointers, sizes, values, tiles, **constants)
        finally:
            current.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", loading)
        patch.setattr(builder, "create_masked_store", storing)
        patch.setattr(builder, "create_atomic_rmw", adding)
        patch.setattr(builder, "set_grid_idx", beginning)
        patch.setattr(function, "__call__", calling)
        patch.setattr(launch.Launcher, "__call__", running)
        yield

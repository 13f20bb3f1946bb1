"""Registration of operators with `torch.library`, and the switch between Triton and torch on CUDA.

`torch.library.Library` has the schema and dispatch of the `custom_op` decorator at less cost, and lets calls outside
`torch.compile` bypass both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .triton import INSTALLED

_library = torch.library.Library("text_generation", "DEF")
_triton_enabled = True


def use_triton(enabled: bool) -> None:
    """Selects the implementation on CUDA of operators that have both: the Triton kernel (the default) or torch.

    The engine calls it before the first forward pass, from the configuration. Raises ImportError if Triton is selected
    and not installed.
    """
    global _triton_enabled
    if enabled and not INSTALLED:
        raise ImportError("--attention triton needs the package triton, which is not installed; use --attention torch")
    _triton_enabled = enabled


def triton_enabled() -> bool:
    """Whether `use_triton` selected Triton."""
    return _triton_enabled


def register(
    implementation: Callable[..., None],
    mutates: Sequence[str],
    triton: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """Registers an operator under the name of its torch implementation and returns a function that calls it.

    `implementation` runs on CPU, and on CUDA where there is no `triton`; `mutates` names the arguments it writes to.
    Both have one signature and return nothing. The device of the first argument, a tensor, selects one.

    Calls go through torch's dispatcher only where `torch.compile` traces them: for implementations in Python it costs
    5 us a call (0.4 without it), which a small model on a CPU feels in every layer.
    """
    name = getattr(implementation, "__name__").removesuffix("_torch")  # noqa: B009
    schema = torch.library.infer_schema(implementation, mutates_args=mutates)
    dispatch = by_device(implementation, triton)
    _library.define(name + schema)
    _library.impl(name, implementation, "CPU")
    _library.impl(name, dispatch, "CUDA")
    operator = getattr(torch.ops.text_generation, name).default

    def call(*arguments: Any) -> None:
        (operator if torch.compiler.is_compiling() else dispatch)(*arguments)

    return call


def by_device(implementation: Callable[..., None], triton: Callable[..., None] | None) -> Callable[..., None]:
    """A function that calls `triton` on CUDA, if there is one, else `implementation`.

    Sampling operators need no registration: nobody traces them, and they take named tuples, which torch's schemas do
    not support.

    Both have one signature and return nothing. `is_cuda` of the first argument holds for all of them.
    """

    def dispatch(*arguments: Any) -> None:
        if triton is not None and _triton_enabled and arguments[0].is_cuda:
            triton(*arguments)
        else:
            implementation(*arguments)

    return dispatch

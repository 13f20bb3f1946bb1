"""Registration of operators with `torch.library`, and the switch between Triton and torch on CUDA.

`torch.library.Library` is used rather than the `custom_op` decorator: it has the same schema and the same dispatch at
less cost, and lets calls that nothing traces go past both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .triton import INSTALLED

_library = torch.library.Library("text_generation", "DEF")
_triton_enabled = True


def use_triton(enabled: bool) -> None:
    """Chooses what runs on CUDA where an operator has both: the Triton kernel (the default) or torch.

    Call it before the first forward pass; the engine does so from the configuration. Raises ImportError where kernels
    are asked for and Triton is not installed.
    """
    global _triton_enabled
    if enabled and not INSTALLED:
        raise ImportError("--attention triton needs the package triton, which is not installed; use --attention torch")
    _triton_enabled = enabled


def triton_enabled() -> bool:
    """What `use_triton` has chosen."""
    return _triton_enabled


def register(
    implementation: Callable[..., None],
    mutates: Sequence[str],
    triton: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """Registers an operator under the name of its torch implementation and returns what calls it.

    `implementation` runs on CPU, and on CUDA where there is no `triton`; `mutates` names the arguments it writes to.
    Both have one signature and return nothing. The first argument is a tensor, and its device decides.

    The call goes through torch's dispatcher only where `torch.compile` traces it: for implementations in Python that
    costs 5 us a call (0.4 without it), which a small model on a CPU feels in every layer.
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
    """What calls an operator: `triton` on CUDA, if there is one, else `implementation`.

    Sampling needs no more: it is no part of a model that somebody may trace, and its operators take named tuples, which
    schemas of torch do not know.

    Both have one signature and return nothing. The first argument says by `is_cuda` where all of them are.
    """

    def dispatch(*arguments: Any) -> None:
        if triton is not None and _triton_enabled and arguments[0].is_cuda:
            triton(*arguments)
        else:
            implementation(*arguments)

    return dispatch

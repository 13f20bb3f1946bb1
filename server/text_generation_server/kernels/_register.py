"""Registration of operators with `torch.library`, and the switch between Triton and torch on CUDA.

`torch.library.Library` is used rather than the `custom_op` decorator: it has the same schema and the same dispatch,
and costs 2 us a call rather than 12, which a small model on CPU feels in every layer.
"""

from collections.abc import Callable, Sequence

import torch

_library = torch.library.Library("text_generation", "DEF")
_triton_enabled = True


def use_triton(enabled: bool) -> None:
    """Chooses what runs on CUDA where an operator has both: the Triton kernel (the default) or torch.

    Call it before the first forward pass; the engine does so from the configuration.
    """
    global _triton_enabled
    _triton_enabled = enabled


def register(
    implementation: Callable[..., None],
    mutates: Sequence[str],
    triton: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """Registers an operator under the name of its torch implementation and returns the callable that dispatches.

    `implementation` runs on CPU, and on CUDA where there is no `triton`; `mutates` names the arguments it writes to.
    Both have one signature and return nothing.
    """
    name = getattr(implementation, "__name__").removesuffix("_torch")  # noqa: B009
    schema = torch.library.infer_schema(implementation, mutates_args=mutates)
    _library.define(name + schema)
    _library.impl(name, implementation, "CPU")
    _library.impl(name, implementation if triton is None else _switch(triton, implementation), "CUDA")
    return getattr(torch.ops.text_generation, name).default


def _switch(triton: Callable[..., None], fallback: Callable[..., None]) -> Callable[..., None]:
    def dispatch(*arguments: object) -> None:
        (triton if _triton_enabled else fallback)(*arguments)

    return dispatch

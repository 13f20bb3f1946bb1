"""Operators of a device, called with tensors of the CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def on_cuda(operator: Callable[..., Any]) -> Callable[..., None]:
    """A function that calls an operator with copies of its tensors on the device, also of those in named tuples, and
    brings back what it wrote.
    """

    def call(*arguments: Any, **options: Any) -> None:
        copies = [_moved(each) for each in arguments]
        operator(*copies, **options)
        for given, copy in zip(arguments, copies, strict=True):
            if isinstance(given, Tensor):
                given.copy_(copy)

    return call


def _moved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda").copy_(value)
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return type(value)(*map(_moved, value))
    return value

"""Operators of a device, called with tensors of the CPU."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def on_cuda(operator: Callable[..., Any]) -> Callable[..., None]:
    """A function that calls an operator with copies of its tensors on the device, also of those in records, and brings
    back what it wrote.
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
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _moved(getattr(value, each.name)) for each in fields(value)})
    return value

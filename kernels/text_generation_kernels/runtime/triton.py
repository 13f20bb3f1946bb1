"""Triton for the files that define kernels, or placeholders where it is not installed, as on macOS.

With placeholders, kernels can be defined but never run: the torch implementations of all operators need no Triton.
"""

# pyright: basic
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import triton
    import triton.language as tl
    from triton import knobs
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
    from triton.language.extra import cuda

    INSTALLED = True
except ModuleNotFoundError as error:
    # A Triton that lacks a module is too old, which its own error says best.
    if error.name != "triton" or TYPE_CHECKING:
        raise

    class _Absent:
        """Stands for every name of Triton. As a decorator it leaves the function unchanged."""

        class JITFunction:
            """No kernel is an instance."""

        def __getattr__(self, name: str) -> "_Absent":
            return self

        def __call__(self, *arguments: Any, **_: Any) -> "_Absent | Callable[..., Any]":
            return arguments[0] if arguments and callable(arguments[0]) else self

    INSTALLED = False
    triton = tl = knobs = cuda = gluon = gl = hopper = TensorDescriptor = _Absent()

__all__ = ["INSTALLED", "TensorDescriptor", "cuda", "gl", "gluon", "hopper", "knobs", "tl", "triton"]

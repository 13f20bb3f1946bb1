"""Kernel variants that launches need, noted without a device: nothing is compiled and nothing runs."""

# pyright: basic
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from text_generation_kernels import compile_only
from text_generation_kernels.runtime import launch

from .aot import SM_90

Variants = set[tuple[str, str]]
"""Names of kernels, each with Triton's key of the variant."""


class NoDevice:
    """The driver of a device that is not there."""

    def get_current_target(self) -> GPUTarget:
        return SM_90

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


def pretend_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles for sm_90, and operators take tensors of the CPU for tensors of a device."""
    monkeypatch.setattr(driver, "_active", NoDevice())
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (SM_90.arch // 10, SM_90.arch % 10))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)


@contextmanager
def dry_run_variants() -> Iterator[Variants]:
    """Variants that launches name in a compile dry run."""
    with _noted() as variants, compile_only(threads=1):
        yield variants


@contextmanager
def launched_variants() -> Iterator[Variants]:
    """Variants that launches need. Kernels write nothing."""
    with _noted() as variants, pytest.MonkeyPatch.context() as patch:
        # Each launch goes through Triton.
        patch.setattr(launch, "_DIRECT", False)
        yield variants


@contextmanager
def _noted() -> Iterator[Variants]:
    found: Variants = set()

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        found.add((fn.name, compile["key"]))
        return True  # Triton compiles nothing then.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knobs.runtime, "jit_cache_hook", note)
        yield found

"""Compile dry run: variants are compiled in parallel, without a device and without touching memory."""

# pyright: basic
import pytest
import torch
import triton
import triton.language as tl
from kernel_support.variants import NoDevice
from triton.runtime import driver

from text_generation_kernels import compilations, compile_only
from text_generation_kernels.runtime.launch import Launcher


@triton.jit
def _fill_kernel(out_ptr, stride, factor, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out_ptr + places * stride, places * factor)


@triton.jit
def _wrong_kernel(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK))


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_active", NoDevice())


def test_every_variant_is_compiled_once_and_nothing_runs() -> None:
    launch, out, before = Launcher(_fill_kernel, writes=("out",)), torch.zeros(256), compilations()
    with compile_only(threads=2):
        for block in (32, 64, 32, 128):
            launch((1,), (out,), (1,), (0.5,), BLOCK=block)
    assert compilations() - before == 3
    assert not out.any()
    with compile_only(threads=2):
        launch((4,), (out,), (1,), (2.0,), BLOCK=64)
    assert compilations() - before == 3


def test_a_kernel_that_does_not_compile_ends_it_with_its_error() -> None:
    with pytest.raises(triton.CompilationError), compile_only(threads=2):
        Launcher(_wrong_kernel, writes=("out",))((1,), (torch.zeros(64),), BLOCK=32)

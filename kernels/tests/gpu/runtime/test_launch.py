"""The launch cache: which variants are compiled, and that a cached one is right for other arguments."""

# pyright: basic
from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from text_generation_kernels import compilations, compile_only
from text_generation_kernels.runtime.launch import Launcher, launch_dependents, wait_for_previous

pytestmark = pytest.mark.gpu


@triton.jit(do_not_specialize=["addend"])
def _scale_kernel(x_ptr, out_ptr, stride, addend, factor, BLOCK: tl.constexpr, PDL: tl.constexpr):
    launch_dependents(PDL)
    wait_for_previous(PDL)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + places, tl.load(x_ptr + places * stride) * factor + addend)


@triton.jit
def _specialised_kernel(out_ptr, value):
    tl.store(out_ptr, value)


@triton.jit
def _crowd_kernel(here_ptr, most_ptr, PAUSE: tl.constexpr, PDL: tl.constexpr):
    processor = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.atomic_max(most_ptr + processor, tl.atomic_add(here_ptr + processor, 1) + 1)
    # Others come meanwhile, if they can.
    tl.inline_asm_elementwise(PAUSE, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.atomic_add(here_ptr + processor, -1)


def _check(launch: Launcher, x: Tensor, stride: int, blocks: int, addend: int, factor: float) -> int:
    """Returns how many variants this call compiled."""
    before = compilations()
    out = torch.full((blocks * 64,), float("nan"), device="cuda", dtype=x.dtype)
    launch((blocks,), (x, out), (stride,), (addend, factor), BLOCK=64)
    torch.testing.assert_close(out, x[::stride][: len(out)] * factor + addend)
    return compilations() - before


def test_one_variant_serves_all_values_and_grids() -> None:
    launch, x = Launcher(_scale_kernel, writes=("out",)), torch.randn(4096, device="cuda")
    _check(launch, x, 1, 1, 5, 0.5)
    assert [_check(launch, x, 1, blocks, blocks, blocks / 3) for blocks in (1, 2, 16, 64)] == [0] * 4


def test_other_types_sizes_and_alignments_have_their_own_variants() -> None:
    launch, x = Launcher(_scale_kernel, writes=("out",)), torch.randn(8192, device="cuda")
    for _ in range(2):
        for given in (x, x[1:], x.double(), x[3:], x):
            for stride in (1, 2, 16, 3, 1):
                _check(launch, given, stride, 2, 1, 2.0)
    assert _check(launch, x[1:], 16, 2, 1, 2.0) == 0


def test_compiling_ahead_runs_nothing_and_leaves_nothing_to_compile() -> None:
    launch, x = Launcher(_scale_kernel, writes=("out",)), torch.randn(4096, device="cuda", dtype=torch.float16)
    out = torch.zeros(64, device="cuda", dtype=torch.float16)
    for _ in range(2):  # also when the variants were launched before
        with compile_only(threads=2):
            for stride in (1, 2):
                launch((1,), (x, out), (stride,), (1, 1.0), BLOCK=64)
        assert not out.any()
        assert [_check(launch, x, stride, 1, 1, 1.0) for stride in (1, 2)] == [0, 0]


def test_dependent_launches_see_what_the_one_before_wrote() -> None:
    launch = Launcher(_scale_kernel, writes=("out",))
    buffers = torch.zeros(65, 1 << 20, device="cuda")

    def chain() -> None:
        for source, target in pairwise(buffers):
            launch((buffers.shape[1] // 64,), (source, target), (1,), (1, 1.0), BLOCK=64)

    chain()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(5):
        buffers.normal_()
        expected = buffers[0] + 64
        graph.replay()
        torch.testing.assert_close(buffers[-1], expected)


def test_an_sm_has_no_more_thread_blocks_than_the_limit() -> None:
    launch = Launcher(_crowd_kernel, writes=("here", "most"))
    seen: list[int] = []
    for programs in (4, 5, 0):
        for _ in range(2):  # the first launch of a variant is Triton's own
            here, most = torch.zeros(2, 1024, device="cuda", dtype=torch.int32)
            launch((4096,), (here, most), max_blocks_per_sm=programs, PAUSE="nanosleep.u32 20000; mov.u32 $0, 0;")
        seen.append(int(most.max()))
    assert seen[:2] == [4, 5]
    assert seen[2] > 5


def test_a_value_that_would_recompile_is_refused() -> None:
    with pytest.raises(TypeError, match="value in do_not_specialize"):
        Launcher(_specialised_kernel, writes=("out",))((1,), (torch.empty(1, device="cuda"),), (), (3,))

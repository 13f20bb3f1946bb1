"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support.convolution import CHUNKS, Convolution, Run, check_cuts

from text_generation_kernels.recurrent.causal_conv import causal_conv_torch, causal_conv_triton


@pytest.mark.parametrize(
    ("channels", "taps", "dtype", "bias"),
    [(257, 4, torch.float32, False), (40, 3, torch.float16, True)],
    ids=str,
)
def test_chunks(channels: int, taps: int, dtype: torch.dtype, bias: bool) -> None:
    """Runs at edges of tiles, fresh and continued; padding among them."""
    Convolution.of(CHUNKS, channels, taps, dtype, bias=bias).check(causal_conv_triton, causal_conv_torch)


@pytest.mark.parametrize(
    ("channels", "taps", "dtype"), [(1, 2, torch.float32), (257, 4, torch.float32), (513, 3, torch.float16)], ids=str
)
def test_decodes(channels: int, taps: int, dtype: torch.dtype) -> None:
    Convolution.of_decodes(channels, taps, dtype).check(causal_conv_triton, causal_conv_torch)


def test_sums_without_an_activation() -> None:
    for made in (
        Convolution.of(CHUNKS, 40, 3, torch.float32, silu=False),
        Convolution.of_decodes(40, 3, torch.float32, silu=False),
    ):
        made.check(causal_conv_triton, causal_conv_torch)


def test_results_do_not_depend_on_where_a_run_is_cut() -> None:
    check_cuts(causal_conv_triton, torch.float16)


def test_more_runs_than_the_smallest_variant_has_room_for() -> None:
    runs = [Run(1 + index % 3, index % 2) for index in range(20)]
    Convolution.of(runs, 8, 4, torch.float32).check(causal_conv_triton, causal_conv_torch)


@pytest.mark.parametrize("runs", [[], [Run(0, 5)]])
def test_nothing_to_do(runs: list[Run]) -> None:
    Convolution.of(runs, 8, 4, torch.float32).check(causal_conv_triton, causal_conv_torch)

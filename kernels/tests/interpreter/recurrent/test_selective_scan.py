"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

from dataclasses import replace

import pytest
import torch
from kernel_support.mamba import ALONE, Run, check_cuts, runs_of, scan

from text_generation_kernels.recurrent.selective_scan import selective_scan_triton

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "channels", "n"), [([3, 17], 20, 6), ([4, 8], 16, 16), ([9], 2, 33)], ids=str)
def test_chunks(lengths: list[int], channels: int, n: int, dtype: torch.dtype) -> None:
    """Runs at edges of what is loaded at a time, fresh and continued; padding among them."""
    scan(runs_of(lengths), channels, n, dtype).check(selective_scan_triton)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "n"), [(70, 16), (1, 1), (5, 256)], ids=str)
def test_decodes(channels: int, n: int, dtype: torch.dtype) -> None:
    scan(ALONE, channels, n, dtype).decodes.check(selective_scan_triton)


def test_small_time_steps_are_precise() -> None:
    """softplus(-12) is 6e-6: the logarithm of a float32 sum would keep two digits of it."""
    made = scan([Run(1)], 8, 16, torch.float32)
    bias = made.dynamics.dt_bias
    made = replace(made, dynamics=replace(made.dynamics, dt_bias=bias - 10))
    _, state = made.run(selective_scan_triton)
    x, dt, b = (each[2].double() for each in made.inputs[:3])
    expected = torch.outer((dt + bias - 10).exp().log1p() * x, b)
    torch.testing.assert_close(state[made.rows[0]].double(), expected, atol=0, rtol=3e-6)


def test_results_do_not_depend_on_where_a_run_is_cut() -> None:
    check_cuts(selective_scan_triton, scan([Run(113)], 16, 16, torch.float16))


@pytest.mark.parametrize("runs", [[], [Run(0, 1)]])
def test_nothing_to_do(runs: list[Run]) -> None:
    scan([*runs, Run(2, padding=True)], 8, 16, torch.float32).check(selective_scan_triton)

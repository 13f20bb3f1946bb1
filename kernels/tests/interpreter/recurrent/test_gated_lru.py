"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

from dataclasses import replace

import pytest
import torch
from kernel_support.mamba import ALONE, Run, check_cuts, lru, runs_of

from text_generation_kernels.recurrent.gated_lru import gated_lru_triton

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "blocks", "width"), [([3, 17], 5, 4), ([4, 8], 1, 33)], ids=str)
def test_chunks(lengths: list[int], blocks: int, width: int, dtype: torch.dtype) -> None:
    """Runs at edges of what is loaded at a time, fresh and continued; padding among them."""
    lru(runs_of(lengths), blocks, width, dtype).check(gated_lru_triton)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("blocks", "width"), [(10, 16), (1, 1)], ids=str)
def test_decodes(blocks: int, width: int, dtype: torch.dtype) -> None:
    lru(ALONE, blocks, width, dtype).decodes.check(gated_lru_triton)


def test_slow_decays_are_precise() -> None:
    """1 - exp(-2e-6): the difference of float32 numbers would keep two digits of it."""
    made = lru([Run(2)], 1, 8, torch.float32)
    made = replace(made, dynamics=replace(made.dynamics, rate=torch.full((8,), -1e-6)))
    _, state = made.run(gated_lru_triton)
    x, gates, _ = (each[2:4].double() for each in made.inputs)
    opened = (gates.view(2, 2, 8) + made.dynamics.bias.double()).sigmoid()
    log_decay = -1e-6 * opened[1, 0]
    expected = log_decay.exp() * opened[0, 1] * x[0] + (-(2 * log_decay).expm1()).sqrt() * opened[1, 1] * x[1]
    torch.testing.assert_close(state[made.rows[0]].double(), expected, atol=1e-7, rtol=1e-6)


def test_results_do_not_depend_on_where_a_run_is_cut() -> None:
    check_cuts(gated_lru_triton, lru([Run(113)], 2, 8, torch.float16))


@pytest.mark.parametrize("runs", [[], [Run(0, 1)]])
def test_nothing_to_do(runs: list[Run]) -> None:
    lru([*runs, Run(2, padding=True)], 1, 8, torch.float32).check(gated_lru_triton)

"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, runs_of, space

from text_generation_kernels.recurrent.state_space import state_space_triton

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize(
    ("heads", "p", "groups", "n", "high"), [(4, 20, 2, 24, float("inf")), (2, 70, 1, 16, 0.4)], ids=str
)
def test_blocks_of_tokens(heads: int, p: int, groups: int, n: int, high: float) -> None:
    """Runs at edges of blocks, fresh and continued; padding among them."""
    made = space(runs_of(LENGTHS), heads, p, groups, n, torch.float16, low=0.1, high=high)
    made.check(state_space_triton, False, rounded=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "heads", "p", "groups", "n"), [([1, 3, 5], 2, 20, 2, 24), ([2, 4], 3, 4, 1, 80)])
def test_token_after_token(lengths: list[int], heads: int, p: int, groups: int, n: int, dtype: torch.dtype) -> None:
    """Runs at edges of what is loaded at a time."""
    made = space(runs_of(lengths), heads, p, groups, n, dtype, low=0.1, high=0.4)
    made.check(state_space_triton, True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "p", "groups", "n"), [(4, 12, 2, 8), (1, 1, 1, 1), (1, 70, 1, 130)], ids=str)
def test_decodes(heads: int, p: int, groups: int, n: int, dtype: torch.dtype) -> None:
    space(ALONE, heads, p, groups, n, dtype).decodes.check(state_space_triton, False)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_that_all_tokens_have(deterministic: bool) -> None:
    """As of lightning attention: each token has the same row."""
    made = space(runs_of([1, 20, 3]), 3, 20, 3, 20, torch.float16, low=0.3, high=0.3)
    made.with_one_step().check(state_space_triton, deterministic, rounded=not deterministic)


def test_results_do_not_depend_on_where_a_run_is_cut() -> None:
    check_cuts(state_space_triton, space([Run(113)], 1, 12, 1, 16, torch.float16), True)


@pytest.mark.parametrize("runs", [[], [Run(0, 1)]])
def test_nothing_to_do(runs: list[Run]) -> None:
    made = space([*runs, Run(20, padding=True)], 2, 12, 1, 16, torch.float16)
    made.check(state_space_triton, False)
    made.check(state_space_triton, True)

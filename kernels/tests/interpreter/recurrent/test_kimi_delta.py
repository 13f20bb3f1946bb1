"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's GEMMs of it are wrong."""

import pytest
import torch
from kernel_support.convolution import Run
from kernel_support.delta import CHUNKS, SHORT, UNTOUCHED
from kernel_support.kimi_delta import KimiDelta, check_cuts

from text_generation_kernels import Runs
from text_generation_kernels.recurrent.kimi_delta import kimi_delta_triton


@pytest.mark.parametrize(
    ("heads", "key_dim", "value_dim", "dtype", "least"),
    [(2, 16, 8, torch.float32, 0.0), (1, 8, 48, torch.float16, 0.0), (2, 16, 16, torch.float32, -5.0)],
    ids=str,
)
def test_short_runs(heads: int, key_dim: int, value_dim: int, dtype: torch.dtype, least: float) -> None:
    """Token after token; padding among them."""
    KimiDelta.of(SHORT, heads, key_dim, value_dim, dtype, least=least).check(kimi_delta_triton)


@pytest.mark.parametrize(
    ("heads", "key_dim", "value_dim", "dtype"), [(2, 8, 16, torch.float32), (4, 80, 16, torch.float16)], ids=str
)
def test_decodes(heads: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> None:
    KimiDelta.of_decodes(heads, key_dim, value_dim, dtype).check(kimi_delta_triton)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_deterministic_results_do_not_depend_on_where_a_run_is_cut(dtype: torch.dtype) -> None:
    check_cuts(kimi_delta_triton, dtype, (2, 16, 8), 9, [1, 5, 6])


@pytest.mark.parametrize(
    ("heads", "key_dim", "value_dim", "least"), [(3, 16, 8, 0.0), (1, 8, 48, -5.0), (1, 80, 16, 0.0)], ids=str
)
def test_blocks(heads: int, key_dim: int, value_dim: int, least: float) -> None:
    """Runs at edges of blocks, fresh and continued; padding among them."""
    KimiDelta.of(CHUNKS, heads, key_dim, value_dim, torch.float16, least=least).check(kimi_delta_triton)


@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("decay", [1e-6, 300.0])
def test_blocks_that_hardly_decay_and_blocks_that_are_gone(decay: float, alike: float) -> None:
    """With keys that are alike, and all of their values replaced."""
    made = KimiDelta.of([Run(130, 3)], 2, 16, 8, torch.float16, decay=decay, corrected=9.0, alike=alike)
    made.check(kimi_delta_triton)


def test_blocks_go_on_where_others_ended() -> None:
    """A run in two chunks, the second one token by token."""
    whole = KimiDelta.of([Run(100, 3)], 2, 16, 8, torch.float16)
    expected, expected_state = whole.run(kimi_delta_triton)
    out, state = torch.full_like(expected, UNTOUCHED), whole.state.clone()
    for begin, end in ((2, 97), (97, 102)):
        starts = torch.tensor([begin, end], dtype=torch.int32)
        runs = Runs(whole.runs.rows, starts, torch.tensor([1 + end], dtype=torch.int32), end - begin)
        kimi_delta_triton(*whole.inputs, state, runs, out, False)
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(state, expected_state, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("runs", [[], [Run(0, 5)], [Run(70, padding=True)]], ids=str)
def test_nothing_to_do(runs: list[Run]) -> None:
    KimiDelta.of(runs, 2, 8, 8, torch.float16).check(kimi_delta_triton)

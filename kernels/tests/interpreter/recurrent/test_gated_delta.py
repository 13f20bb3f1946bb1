"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's GEMMs of it are wrong."""

import pytest
import torch
from kernel_support.convolution import Run
from kernel_support.delta import CHUNKS, SHORT, UNTOUCHED, Delta, check_cuts

from text_generation_kernels import Runs
from text_generation_kernels.recurrent.gated_delta import gated_delta_triton


@pytest.mark.parametrize(
    ("heads", "key_heads", "key_dim", "value_dim", "dtype"),
    [(2, 1, 16, 8, torch.float32), (2, 2, 8, 48, torch.float16)],
    ids=str,
)
def test_short_runs(heads: int, key_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> None:
    """Token after token; padding among them."""
    Delta.of(SHORT, heads, key_heads, key_dim, value_dim, dtype).check(gated_delta_triton)


@pytest.mark.parametrize(
    ("heads", "key_heads", "key_dim", "value_dim", "dtype"),
    [(2, 1, 8, 16, torch.float32), (4, 2, 80, 16, torch.float16)],
    ids=str,
)
def test_decodes(heads: int, key_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> None:
    Delta.of_decodes(heads, key_heads, key_dim, value_dim, dtype).check(gated_delta_triton)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_deterministic_results_do_not_depend_on_where_a_run_is_cut(dtype: torch.dtype) -> None:
    check_cuts(gated_delta_triton, dtype, (2, 1, 16, 8), 9, [1, 5, 6])


@pytest.mark.parametrize(
    ("heads", "key_heads", "key_dim", "value_dim"), [(4, 2, 16, 8), (1, 1, 8, 48), (1, 1, 80, 16)], ids=str
)
def test_blocks(heads: int, key_heads: int, key_dim: int, value_dim: int) -> None:
    """Runs at edges of blocks, fresh and continued; padding among them."""
    Delta.of(CHUNKS, heads, key_heads, key_dim, value_dim, torch.float16).check(gated_delta_triton)


@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("decay", [1e-6, 300.0])
def test_blocks_that_hardly_decay_and_blocks_that_are_gone(decay: float, alike: float) -> None:
    """With keys that are alike, and all of their values replaced."""
    made = Delta.of([Run(130, 3)], 2, 1, 16, 8, torch.float16, decay=decay, corrected=9.0, alike=alike)
    made.check(gated_delta_triton)


@pytest.mark.parametrize(
    ("tokens", "corrected", "dtype"), [(130, 0.0, torch.float16), (9, 0.0, torch.float16), (9, 9.0, torch.float32)]
)
def test_negative_eigenvalues(tokens: int, corrected: float, dtype: torch.dtype) -> None:
    """Keys that are alike, whose values may change sign with each token; by blocks, and token by token."""
    made = Delta.of([Run(tokens, 3)], 2, 1, 16, 8, dtype, corrected=corrected, alike=0.9, most_beta=2)
    made.check(gated_delta_triton)


def test_blocks_go_on_where_others_ended() -> None:
    """A run in two chunks, the second one token by token."""
    whole = Delta.of([Run(100, 3)], 2, 1, 16, 8, torch.float16)
    expected, expected_state = whole.run(gated_delta_triton)
    out, state = torch.full_like(expected, UNTOUCHED), whole.state.clone()
    for begin, end in ((2, 97), (97, 102)):
        starts = torch.tensor([begin, end], dtype=torch.int32)
        runs = Runs(whole.rows, starts, torch.tensor([1 + end], dtype=torch.int32), end - begin)
        gated_delta_triton(whole.qkv, whole.gates, whole.rate, whole.bias, state, runs, out, False)
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(state, expected_state, atol=4e-3, rtol=4e-3)


def test_more_runs_than_the_smallest_variant_has_room_for() -> None:
    runs = [Run(1 + index % 3, index % 2) for index in range(20)]
    Delta.of(runs, 1, 1, 8, 8, torch.float16).check(gated_delta_triton, max_len=100)


@pytest.mark.parametrize("runs", [[], [Run(0, 5)], [Run(70, padding=True)]], ids=str)
def test_nothing_to_do(runs: list[Run]) -> None:
    Delta.of(runs, 2, 1, 8, 8, torch.float16).check(gated_delta_triton, max_len=100)

"""The Triton kernels as they serve: 16-bit types, through the dispatcher and in graphs, on the device."""

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, check_graph, runs_of, space

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
HALVES = [torch.bfloat16, torch.float16]
DTYPES = [*HALVES, torch.float32]
SIZES = [(16, 64, 2, 128), (8, 64, 1, 64), (4, 12, 2, 8), (3, 80, 1, 20), (4, 64, 1, 256), (4, 128, 4, 128)]
NAMES = ("heads", "p", "groups", "n")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("low", "high"), [(0.0, float("inf")), (0.1, 0.4)])
@pytest.mark.parametrize(NAMES, SIZES)
def test_blocks_of_tokens(heads: int, p: int, groups: int, n: int, low: float, high: float, dtype: torch.dtype) -> None:
    made = space(runs_of(LENGTHS), heads, p, groups, n, dtype, "cuda", low, high)
    made.check(kernels.state_space, False, rounded=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(NAMES, SIZES)
def test_token_after_token(heads: int, p: int, groups: int, n: int, dtype: torch.dtype) -> None:
    made = space(runs_of([1, 2, 5, 33]), heads, p, groups, n, dtype, "cuda", 0.1, 0.4)
    made.check(kernels.state_space, True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(NAMES, SIZES)
def test_decodes(heads: int, p: int, groups: int, n: int, dtype: torch.dtype) -> None:
    space(ALONE, heads, p, groups, n, dtype, "cuda").decodes.check(kernels.state_space, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(NAMES, SIZES)
def test_deterministic_results_do_not_depend_on_where_a_run_is_cut(
    heads: int, p: int, groups: int, n: int, dtype: torch.dtype
) -> None:
    check_cuts(kernels.state_space, space([Run(113)], heads, p, groups, n, dtype, "cuda"), True)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_that_all_tokens_have(dtype: torch.dtype, deterministic: bool) -> None:
    """As of lightning attention: each token has the same row."""
    made = space(runs_of(LENGTHS), 8, 128, 8, 128, dtype, "cuda", 0.1, 0.1)
    in_blocks = dtype != torch.float32 and not deterministic
    made.with_one_step().check(kernels.state_space, deterministic, rounded=in_blocks)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_serves_other_runs(deterministic: bool) -> None:
    """As many tokens and runs, cut elsewhere."""
    captured = space([Run(5), Run(60, 1), Run(0, padding=True)], 16, 64, 2, 128, torch.bfloat16, "cuda")
    replayed = space([Run(33, 1), Run(16), Run(16, 1)], 16, 64, 2, 128, torch.bfloat16, "cuda")
    check_graph(kernels.state_space, captured, replayed, deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
def test_offsets_beyond_32_bits(deterministic: bool) -> None:
    """A pool of states that has more elements."""
    made = space([Run(20, 1)], 64, 64, 1, 128, torch.bfloat16, "cuda")
    expected, expected_state = made.run(kernels.state_space, deterministic)
    last = 2**31 // (64 * 64 * 128) + 1
    pool = torch.empty(last + 1, 64, 64, 128, device="cuda")
    pool[last] = made.state[made.rows[0]]
    out, rows = made.out.clone(), torch.full_like(made.rows, last)
    runs = kernels.Runs(rows, made.starts, made.kv_lens, made.max_len)
    kernels.state_space(*made.inputs, made.dynamics, pool, runs, out, deterministic)
    torch.testing.assert_close(out, expected, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(pool[last], expected_state[made.rows[0]])

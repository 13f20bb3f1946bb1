"""The Triton kernel as it serves: 16-bit types, through the dispatcher and in graphs, on the device."""

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, check_graph, runs_of, scan

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [(1024, 16), (100, 16), (33, 1), (33, 6), (40, 100), (20, 256)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "n"), SIZES)
def test_chunks(channels: int, n: int, dtype: torch.dtype) -> None:
    scan(runs_of(LENGTHS), channels, n, dtype, "cuda").check(kernels.selective_scan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "n"), SIZES)
def test_decodes(channels: int, n: int, dtype: torch.dtype) -> None:
    scan(ALONE, channels, n, dtype, "cuda").decodes.check(kernels.selective_scan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "n"), SIZES)
def test_results_do_not_depend_on_where_a_run_is_cut(channels: int, n: int, dtype: torch.dtype) -> None:
    check_cuts(kernels.selective_scan, scan([Run(113)], channels, n, dtype, "cuda"))


def test_a_graph_serves_other_runs() -> None:
    """As many tokens and runs, cut elsewhere."""
    captured = scan([Run(5), Run(60, 1), Run(0, padding=True)], 1024, 16, torch.bfloat16, "cuda")
    replayed = scan([Run(33, 1), Run(16), Run(16, 1)], 1024, 16, torch.bfloat16, "cuda")
    check_graph(kernels.selective_scan, captured, replayed)


def test_offsets_beyond_32_bits() -> None:
    """A pool of states that has more elements."""
    made = scan([Run(20, 1)], 8192, 16, torch.bfloat16, "cuda")
    expected, expected_state = made.run(kernels.selective_scan)
    last = 2**31 // (8192 * 16) + 1
    pool = torch.empty(last + 1, 8192, 16, device="cuda")
    pool[last] = made.state[made.rows[0]]
    out, rows = made.out.clone(), torch.full_like(made.rows, last)
    runs = kernels.Runs(rows, made.starts, made.kv_lens, made.max_len)
    kernels.selective_scan(*made.inputs, made.dynamics, pool, runs, out)
    torch.testing.assert_close(out, expected, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(pool[last], expected_state[made.rows[0]])

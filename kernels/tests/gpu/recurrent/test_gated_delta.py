"""The gated delta rule as it serves: 16-bit types, through the dispatcher and in graphs, on the device."""

import pytest
import torch
from kernel_support.convolution import Run
from kernel_support.delta import CHUNKS, SHORT, UNTOUCHED, Delta, check_cuts
from kernel_support.graphs import run_in_graph

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [(32, 16, 128, 128), (4, 2, 80, 48), (3, 3, 16, 16), (4, 2, 8, 12), (2, 1, 256, 256), (8, 2, 64, 128)]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_chunks(sizes: tuple[int, int, int, int], dtype: torch.dtype, deterministic: bool) -> None:
    Delta.of(CHUNKS, *sizes, dtype, "cuda").check(kernels.gated_delta, deterministic)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_short_chunks(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    Delta.of(SHORT, *sizes, dtype, "cuda").check(kernels.gated_delta)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_decodes(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    Delta.of_decodes(*sizes, dtype, "cuda").check(kernels.gated_delta)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("decay", [1e-6, 300.0])
def test_states_that_hardly_decay_and_states_that_are_gone(decay: float, alike: float, dtype: torch.dtype) -> None:
    """With keys that are alike, and all of their values replaced."""
    sizes = (4, 2, 128, 128)
    made = Delta.of([Run(500, 3)], *sizes, dtype, "cuda", decay=decay, corrected=9.0, alike=alike)
    made.check(kernels.gated_delta)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_deterministic_results_do_not_depend_on_where_a_run_is_cut(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    check_cuts(kernels.gated_delta, dtype, sizes, 150, [1, 64, 65, 66, 140], "cuda")


def test_a_long_run_by_blocks_is_as_one_token_after_the_other() -> None:
    made = Delta.of([Run(3), Run(3000, 1)], 4, 2, 128, 128, torch.bfloat16, "cuda", decay=0.1)
    made.check(kernels.gated_delta)
    made.check(kernels.gated_delta, deterministic=True)


def test_many_runs() -> None:
    runs = [Run(1 + index % 40, index % 3) for index in range(300)]
    Delta.of(runs, 4, 2, 64, 64, torch.bfloat16, "cuda").check(kernels.gated_delta)


@pytest.mark.parametrize("deterministic", [False, True])
def test_negative_eigenvalues(deterministic: bool) -> None:
    """Sizes of OLMo Hybrid 7B."""
    runs = [Run(200, 3), Run(3), Run(64)]
    made = Delta.of(runs, 30, 30, 96, 192, torch.bfloat16, "cuda", most_beta=2)
    made.check(kernels.gated_delta, deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_serves_other_runs(deterministic: bool) -> None:
    """As many tokens and runs, cut elsewhere."""
    sizes = (32, 16, 128, 128)
    captured = Delta.of([Run(5), Run(160, 3), Run(0, padding=True)], *sizes, torch.bfloat16, "cuda")
    replayed = Delta.of([Run(33, 1), Run(66), Run(66, 70)], *sizes, torch.bfloat16, "cuda")
    inputs = (captured.qkv, replayed.qkv), (captured.gates, replayed.gates)
    expected, found = run_in_graph(kernels.gated_delta, captured, replayed, inputs, deterministic)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1][replayed.rows], expected[1][replayed.rows])


@pytest.mark.parametrize("tokens", [10, 100])
def test_offsets_beyond_32_bits(tokens: int) -> None:
    """A pool of states that has more elements."""
    made = Delta.of([Run(tokens, 5)], 32, 16, 128, 128, torch.bfloat16, "cuda")
    expected, expected_state = made.run(kernels.gated_delta)
    last = 2**31 // (32 * 128 * 128) + 1
    pool = torch.empty(last + 1, 32, 128, 128, device="cuda")
    pool[last] = made.state[made.rows[0]]
    out, rows = torch.full_like(expected, UNTOUCHED), torch.full_like(made.rows, last)
    runs = kernels.Runs(rows, made.starts, made.kv_lens, made.max_len)
    kernels.gated_delta(made.qkv, made.gates, made.rate, made.bias, pool, runs, out, False)
    assert torch.equal(out, expected)
    assert torch.equal(pool[last], expected_state[made.rows[0]])

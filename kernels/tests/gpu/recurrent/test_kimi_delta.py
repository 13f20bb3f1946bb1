"""Kimi delta attention as it serves: 16-bit types, through the dispatcher and in graphs, on the device."""

import pytest
import torch
from kernel_support.convolution import Run
from kernel_support.delta import CHUNKS, SHORT, UNTOUCHED
from kernel_support.kimi_delta import KimiDelta, check_cuts

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [(32, 128, 128), (4, 80, 48), (3, 16, 16), (4, 8, 12), (2, 256, 256), (8, 64, 128)]


@pytest.mark.parametrize("least", [0.0, -5.0])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_chunks(sizes: tuple[int, int, int], dtype: torch.dtype, deterministic: bool, least: float) -> None:
    KimiDelta.of(CHUNKS, *sizes, dtype, "cuda", least=least).check(kernels.kimi_delta, deterministic)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_short_chunks_and_decodes(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    KimiDelta.of(SHORT, *sizes, dtype, "cuda").check(kernels.kimi_delta)
    KimiDelta.of_decodes(*sizes, dtype, "cuda").check(kernels.kimi_delta)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("decay", [1e-6, 300.0])
def test_states_that_hardly_decay_and_states_that_are_gone(decay: float, alike: float, dtype: torch.dtype) -> None:
    """With keys that are alike, and all of their values replaced."""
    made = KimiDelta.of([Run(500, 3)], 4, 128, 128, dtype, "cuda", decay=decay, corrected=9.0, alike=alike)
    made.check(kernels.kimi_delta)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_deterministic_results_do_not_depend_on_where_a_run_is_cut(
    sizes: tuple[int, int, int], dtype: torch.dtype
) -> None:
    check_cuts(kernels.kimi_delta, dtype, sizes, 150, [1, 64, 65, 66, 140], "cuda")


def test_a_long_run_by_blocks_is_as_one_token_after_the_other() -> None:
    made = KimiDelta.of([Run(3), Run(3000, 1)], 4, 128, 128, torch.bfloat16, "cuda", decay=0.1)
    made.check(kernels.kimi_delta)
    made.check(kernels.kimi_delta, deterministic=True)


def test_many_runs() -> None:
    runs = [Run(1 + index % 40, index % 3) for index in range(300)]
    KimiDelta.of(runs, 4, 64, 64, torch.bfloat16, "cuda").check(kernels.kimi_delta)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_serves_again(deterministic: bool) -> None:
    made = KimiDelta.of([Run(5), Run(160, 3), Run(0, padding=True)], 32, 128, 128, torch.bfloat16, "cuda")
    expected, expected_state = made.run(kernels.kimi_delta, deterministic)
    out, state, graph = torch.full_like(expected, float("nan")), made.state.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.kimi_delta(*made.inputs, state, made.runs, out, deterministic, 0.0)
    state.copy_(made.state)
    graph.replay()
    used = expected != UNTOUCHED
    assert torch.equal(out[used], expected[used])
    assert torch.equal(state[made.runs.rows], expected_state[made.runs.rows])

"""The Triton kernel as it serves: 16-bit types, through the dispatcher and in graphs, on the device."""

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, check_graph, lru, runs_of

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [(10, 256), (4, 25), (1, 33)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("blocks", "width"), SIZES)
def test_chunks(blocks: int, width: int, dtype: torch.dtype) -> None:
    lru(runs_of(LENGTHS), blocks, width, dtype, "cuda").check(kernels.gated_lru)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("blocks", "width"), SIZES)
def test_decodes(blocks: int, width: int, dtype: torch.dtype) -> None:
    lru(ALONE, blocks, width, dtype, "cuda").decodes.check(kernels.gated_lru)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("blocks", "width"), SIZES)
def test_results_do_not_depend_on_where_a_run_is_cut(blocks: int, width: int, dtype: torch.dtype) -> None:
    check_cuts(kernels.gated_lru, lru([Run(113)], blocks, width, dtype, "cuda"))


def test_a_graph_serves_other_runs() -> None:
    """As many tokens and runs, cut elsewhere."""
    captured = lru([Run(5), Run(60, 1), Run(0, padding=True)], 4, 256, torch.bfloat16, "cuda")
    replayed = lru([Run(33, 1), Run(16), Run(16, 1)], 4, 256, torch.bfloat16, "cuda")
    check_graph(kernels.gated_lru, captured, replayed)

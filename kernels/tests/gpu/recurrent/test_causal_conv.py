"""The Triton kernels as they serve: 16-bit types, through the dispatcher and in graphs, on the device."""

import pytest
import torch
from kernel_support.convolution import CHUNKS, Convolution, Run, check_cuts
from kernel_support.graphs import run_in_graph

import text_generation_kernels as kernels
from text_generation_kernels.recurrent.causal_conv import causal_conv_torch

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("channels", "taps"), [(8192, 4), (100, 4), (33, 3), (512, 2)])
def test_chunks(channels: int, taps: int, bias: bool, dtype: torch.dtype) -> None:
    Convolution.of(CHUNKS, channels, taps, dtype, "cuda", bias).check(kernels.causal_conv, causal_conv_torch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "taps"), [(8192, 4), (100, 4), (33, 3), (512, 2)])
def test_decodes(channels: int, taps: int, dtype: torch.dtype) -> None:
    made = Convolution.of_decodes(channels, taps, dtype, "cuda")
    made.check(kernels.causal_conv, causal_conv_torch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_where_a_run_is_cut(dtype: torch.dtype) -> None:
    check_cuts(kernels.causal_conv, dtype, "cuda")


def test_sums_without_an_activation() -> None:
    for made in (
        Convolution.of(CHUNKS, 2048, 3, torch.bfloat16, "cuda", silu=False),
        Convolution.of_decodes(2048, 3, torch.bfloat16, "cuda", silu=False),
    ):
        made.check(kernels.causal_conv, causal_conv_torch)


def test_many_runs() -> None:
    runs = [Run(1 + index % 40, index % 3) for index in range(300)]
    Convolution.of(runs, 1024, 4, torch.bfloat16, "cuda").check(kernels.causal_conv, causal_conv_torch)


def test_a_graph_serves_other_runs() -> None:
    """As many tokens and runs, cut elsewhere."""
    captured = Convolution.of([Run(5), Run(60, 3), Run(0, padding=True)], 1024, 4, torch.bfloat16, "cuda")
    replayed = Convolution.of([Run(33, 1), Run(16), Run(16, 70)], 1024, 4, torch.bfloat16, "cuda")
    expected, found = run_in_graph(kernels.causal_conv, captured, replayed, [(captured.x, replayed.x)])
    torch.testing.assert_close(found, expected, atol=0, rtol=0, equal_nan=True)


def test_offsets_beyond_32_bits() -> None:
    """A pool of states that has more elements."""
    made = Convolution.of([Run(20, 5)], 8192, 4, torch.bfloat16, "cuda")
    expected, expected_state = made.run(kernels.causal_conv)
    last = 2**31 // (3 * 8192) + 1
    pool = torch.empty(last + 1, 3, 8192, dtype=torch.bfloat16, device="cuda")
    pool[last] = made.state[made.rows[0]]
    out, rows = torch.full_like(expected, float("nan")), torch.full_like(made.rows, last)
    runs = kernels.Runs(rows, made.starts, made.kv_lens, 20)
    kernels.causal_conv(made.x, made.weight, made.bias, pool, runs, out)
    torch.testing.assert_close(out, expected, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(pool[last], expected_state[made.rows[0]])

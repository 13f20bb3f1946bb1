"""The torch implementation beside the formula, and what the operator refuses."""

from dataclasses import replace

import pytest
import torch
from kernel_support.convolution import CHUNKS, Convolution, Run, check_cuts

import text_generation_kernels as kernels
from text_generation_kernels.recurrent.causal_conv import causal_conv_triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def _check(made: Convolution) -> None:
    out, state = made.run(kernels.causal_conv)
    close = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), made.expected, atol=close, rtol=close, equal_nan=True)
    torch.testing.assert_close(state, made.expected_state, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("taps", [2, 3, 4])
def test_chunks_continue_their_requests_and_touch_nothing_else(taps: int, bias: bool, dtype: torch.dtype) -> None:
    _check(Convolution.of(CHUNKS, 24, taps, dtype, bias=bias))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("taps", [2, 3, 4])
def test_decodes_continue_their_requests_and_touch_nothing_else(taps: int, dtype: torch.dtype) -> None:
    _check(Convolution.of_decodes(24, taps, dtype))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_results_do_not_depend_on_where_a_run_is_cut(dtype: torch.dtype) -> None:
    check_cuts(kernels.causal_conv, dtype)


def test_decodes_of_one_row_are_tokens_one_after_the_other() -> None:
    chunk = Convolution.of([Run(9, 4)], 24, 4, torch.float32)
    expected, expected_state = chunk.run(kernels.causal_conv)
    kv_lens = torch.arange(5, 14, dtype=torch.int32)
    decodes = replace(chunk, x=chunk.x[2:-3], rows=chunk.rows.expand(9), starts=None, kv_lens=kv_lens)
    out, state = decodes.run(kernels.causal_conv)
    assert torch.equal(out, expected[2:-3])
    torch.testing.assert_close(state, expected_state, atol=0, rtol=0, equal_nan=True)


def test_what_the_kernels_do_not_read_is_refused() -> None:
    made = Convolution.of([Run(3)], 8, 4, torch.float32)
    other = {
        "do not fit": {"kv_lens": made.kv_lens[:0]},
        "has 5 numbers for each channel": {"weight": torch.zeros(8, 5)},
        "stride 1": {"x": torch.zeros(8, 8).t()},
        "state must be contiguous": {"state": made.state.transpose(1, 2).contiguous().transpose(1, 2)},
        "of the type of x": {"state": made.state.half()},
    }
    for message, tensors in other.items():
        with pytest.raises(ValueError, match=f"causal_conv: .*{message}"):
            replace(made, **tensors).run(causal_conv_triton)

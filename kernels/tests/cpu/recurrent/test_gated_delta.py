"""The torch implementation beside the formula, and what the operator refuses."""

from dataclasses import replace

import pytest
import torch
from kernel_support.convolution import Run
from kernel_support.delta import CHUNKS, Delta, check_cuts

import text_generation_kernels as kernels
from text_generation_kernels.recurrent.gated_delta import gated_delta_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype) -> None:
    Delta.of(CHUNKS, 4, 2, 16, 8, dtype).check(kernels.gated_delta, deterministic=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype) -> None:
    Delta.of_decodes(3, 1, 8, 16, dtype).check(kernels.gated_delta)


@pytest.mark.parametrize("decay", [1e-6, 300.0])
def test_states_that_hardly_decay_and_states_that_are_gone(decay: float) -> None:
    made = Delta.of([Run(60, 3)], 2, 1, 16, 8, torch.float32, decay=decay, corrected=9.0, alike=0.9)
    made.check(kernels.gated_delta)


def test_negative_eigenvalues() -> None:
    made = Delta.of([Run(60, 3)], 2, 1, 16, 8, torch.float32, corrected=9.0, alike=0.9, most_beta=2)
    made.check(kernels.gated_delta)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_where_a_run_is_cut(dtype: torch.dtype) -> None:
    check_cuts(kernels.gated_delta, dtype, (4, 2, 16, 8), 21, [1, 9, 10, 20])


def test_decodes_of_one_row_are_tokens_one_after_the_other() -> None:
    chunk = Delta.of([Run(9, 4)], 4, 2, 16, 8, torch.float32)
    expected, expected_state = chunk.run(kernels.gated_delta)
    kv_lens = torch.arange(5, 14, dtype=torch.int32)
    decodes = replace(chunk, rows=chunk.rows.expand(9), starts=None, kv_lens=kv_lens)
    decodes = replace(decodes, **{name: getattr(chunk, name)[2:-3] for name in ("qkv", "gates", "expected")})
    out, state = decodes.run(kernels.gated_delta)
    assert torch.equal(out, expected[2:-3])
    assert torch.equal(state[chunk.rows], expected_state[chunk.rows])


def test_what_the_kernels_do_not_read_is_refused() -> None:
    made = Delta.of([Run(3)], 4, 2, 16, 8, torch.float32)
    transposed = made.state.transpose(2, 3).contiguous().transpose(2, 3)
    other = {
        "do not fit: .*'kv_lens': \\(0,\\)": {"kv_lens": made.kv_lens[:0]},
        "do not fit: .*'qkv': \\(8, 95\\)": {"qkv": made.qkv[:, 1:]},
        "do not fit: .*'gates': \\(8, 7\\)": {"gates": made.gates[:, 1:]},
        "of one type|have one type": {"gates": made.gates.half()},
        "state be float32": {"state": made.state.half()},
        "stride 1": {"qkv": made.qkv.t().contiguous().t()},
        "state and out must be contiguous": {"state": transposed},
    }
    for message, tensors in other.items():
        with pytest.raises(ValueError, match=f"gated_delta: .*({message})"):
            replace(made, **tensors).run(gated_delta_triton)
    with pytest.raises(ValueError, match="heads have 16 by 272 elements; 256 are the most"):
        Delta.of([Run(1)], 1, 1, 16, 272, torch.float32).run(gated_delta_triton)

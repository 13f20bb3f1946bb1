"""The torch implementation beside the formula and beside Transformers, and what the operator refuses."""

from dataclasses import replace

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, runs_of, space
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

import text_generation_kernels as kernels
from text_generation_kernels.recurrent.state_space import state_space_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("low", "high"), [(0.0, float("inf")), (0.1, 0.4)])
@pytest.mark.parametrize(("heads", "p", "groups", "n"), [(4, 12, 2, 8), (3, 5, 1, 1)])
def test_chunks_continue_their_requests_and_touch_nothing_else(
    heads: int, p: int, groups: int, n: int, low: float, high: float, dtype: torch.dtype
) -> None:
    made = space(runs_of(LENGTHS), heads, p, groups, n, dtype, low=low, high=high)
    made.check(kernels.state_space, False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype) -> None:
    space(ALONE, 4, 12, 2, 8, dtype).decodes.check(kernels.state_space, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "p", "groups", "n"), [(4, 16, 2, 8), (3, 11, 1, 7)])
def test_results_do_not_depend_on_where_a_run_is_cut(
    heads: int, p: int, groups: int, n: int, dtype: torch.dtype
) -> None:
    check_cuts(kernels.state_space, space([Run(113)], heads, p, groups, n, dtype), True)


def test_decodes_of_one_row_are_tokens_one_after_the_other() -> None:
    chunk = space([Run(9, 1)], 4, 12, 2, 8, torch.float32)
    expected, expected_state = chunk.run(kernels.state_space, False)
    several = replace(chunk.decodes, rows=chunk.rows.expand(9), kv_lens=torch.arange(10, 19, dtype=torch.int32))
    several = replace(several, inputs=tuple(each[:9] for each in several.inputs), out=several.out[:9])
    out, state = several.run(kernels.state_space, False)
    assert torch.equal(out, expected[2:-3])
    torch.testing.assert_close(state, expected_state, atol=0, rtol=0, equal_nan=True)


def test_transformers_computes_the_same() -> None:
    """Of a request that goes on, in blocks of 16 tokens."""
    made = space([Run(70, 1)], 4, 12, 2, 8, torch.float32, low=0.1, high=0.4)
    out, state = made.run(kernels.state_space, False)
    x, dt, b, c = (each[None, 2:-3] for each in made.inputs)
    dynamics, before = made.dynamics, made.state[made.rows]
    steps = {"dt_bias": dynamics.dt_bias, "dt_softplus": True, "dt_limit": (0.1, 0.4), "D": dynamics.d}
    expected, held = mamba2_chunk_scan(
        x, dt, -dynamics.a_log.exp(), b, c, 16, initial_states=before, return_final_states=True, **steps
    )
    torch.testing.assert_close(out[2:-3], expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state[made.rows], held, atol=1e-5, rtol=1e-4)


def test_what_the_kernels_do_not_read_is_refused() -> None:
    made = space([Run(3)], 4, 12, 2, 8, torch.float32)
    x, dt, b, c = made.inputs
    many = x.new_zeros(len(x), 2, 257)
    other = {
        "do not fit": {"kv_lens": made.kv_lens[:0]},
        "has 257 numbers": {"inputs": (x, dt, many, many), "state": torch.zeros(4, 4, 12, 257)},
        "must be contiguous but": {"inputs": (x.transpose(1, 2).contiguous().transpose(1, 2), dt, b, c)},
        "must have one type": {"inputs": (x, dt.half(), b, c)},
        "state must be float32": {"state": made.state.half()},
        "float32 and contiguous": {"dynamics": replace(made.dynamics, a_log=made.dynamics.a_log.double())},
    }
    for message, tensors in other.items():
        with pytest.raises(ValueError, match=f"state_space: .*{message}"):
            replace(made, **tensors).run(state_space_triton, False)
    groups_of_three = torch.zeros(len(x), 3, 8)
    with pytest.raises(ValueError, match="do not fit"):
        replace(made, inputs=(x, dt, groups_of_three, groups_of_three)).run(state_space_triton, False)

"""The torch implementation beside the formula and beside Transformers, and what the operator refuses."""

from dataclasses import replace

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, runs_of, scan
from transformers.models.mamba.modeling_mamba import mamba_selective_scan, mamba_selective_state_update

import text_generation_kernels as kernels
from text_generation_kernels.recurrent.selective_scan import selective_scan_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 6, 16])
def test_chunks_continue_their_requests_and_touch_nothing_else(n: int, dtype: torch.dtype) -> None:
    scan(runs_of(LENGTHS), 24, n, dtype).check(kernels.selective_scan)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype) -> None:
    scan(ALONE, 24, 16, dtype).decodes.check(kernels.selective_scan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "n"), [(40, 16), (37, 13)])
def test_results_do_not_depend_on_where_a_run_is_cut(channels: int, n: int, dtype: torch.dtype) -> None:
    check_cuts(kernels.selective_scan, scan([Run(113)], channels, n, dtype))


def test_decodes_of_one_row_are_tokens_one_after_the_other() -> None:
    chunk = scan([Run(9, 1)], 24, 16, torch.float32)
    expected, expected_state = chunk.run(kernels.selective_scan)
    several = replace(chunk.decodes, rows=chunk.rows.expand(9), kv_lens=torch.arange(10, 19, dtype=torch.int32))
    several = replace(several, inputs=tuple(each[:9] for each in several.inputs), out=several.out[:9])
    out, state = several.run(kernels.selective_scan)
    assert torch.equal(out, expected[2:-3])
    torch.testing.assert_close(state, expected_state, atol=0, rtol=0, equal_nan=True)


def test_transformers_computes_the_same() -> None:
    """A prompt, and a decode after it."""
    made = scan([Run(20)], 24, 16, torch.float32)
    out, state = made.run(kernels.selective_scan)
    x, dt, b, c, z = (each[2:-3].t()[None] for each in made.inputs)
    a_log, d, bias = made.dynamics.a_log, made.dynamics.d, made.dynamics.dt_bias
    prompt = (each[..., :19] for each in (x, dt))
    selected = (b[..., :19], c[..., :19], d, z[..., :19])
    expected, held = mamba_selective_scan(*prompt, -a_log.exp(), *selected, bias, True, return_last_state=True)
    last = (b[..., 19], c[..., 19], d, bias, True, z[..., 19])
    newest = mamba_selective_state_update(held, x[..., 19], dt[..., 19], -a_log.exp(), *last)
    torch.testing.assert_close(out[2:-3], torch.cat((expected[0].t(), newest)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state[made.rows], held, atol=1e-5, rtol=1e-4)


def test_what_the_kernel_does_not_read_is_refused() -> None:
    made = scan([Run(3)], 8, 16, torch.float32)
    x, dt, b, c, z = made.inputs
    a_log = made.dynamics.a_log
    turned = x.t().contiguous().t()
    other = {
        "do not fit": {"kv_lens": made.kv_lens[:0]},
        "has 257 numbers": {
            "inputs": (x, dt, *x.new_zeros(2, len(x), 257), z),
            "dynamics": replace(made.dynamics, a_log=torch.zeros(8, 257)),
            "state": torch.zeros(4, 8, 257),
        },
        "one type and stride 1": {"inputs": (turned, dt, b, c, z)},
        "must have one type": {"inputs": (x.half(), dt, b, c, z)},
        "state must be float32": {"state": made.state.half()},
        "float32 and contiguous": {"dynamics": replace(made.dynamics, a_log=a_log.t().contiguous().t())},
    }
    for message, tensors in other.items():
        with pytest.raises(ValueError, match=f"selective_scan: .*{message}"):
            replace(made, **tensors).run(selective_scan_triton)

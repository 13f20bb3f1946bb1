"""The torch implementation beside the formula and beside the function of transformers, and what is refused."""

from dataclasses import replace

import pytest
import torch
from kernel_support.convolution import Run
from kernel_support.delta import CHUNKS
from kernel_support.kimi_delta import KimiDelta, check_cuts
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention

import text_generation_kernels as kernels
from text_generation_kernels.recurrent.kimi_delta import kimi_delta_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("least", [0.0, -5.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype, least: float) -> None:
    KimiDelta.of(CHUNKS, 3, 16, 8, dtype, least=least).check(kernels.kimi_delta, deterministic=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype) -> None:
    KimiDelta.of_decodes(3, 8, 16, dtype).check(kernels.kimi_delta)


@pytest.mark.parametrize("decay", [1e-6, 300.0])
def test_states_that_hardly_decay_and_states_that_are_gone(decay: float) -> None:
    made = KimiDelta.of([Run(60, 3)], 2, 16, 8, torch.float32, decay=decay, corrected=9.0, alike=0.9)
    made.check(kernels.kimi_delta)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_where_a_run_is_cut(dtype: torch.dtype) -> None:
    check_cuts(kernels.kimi_delta, dtype, (4, 16, 8), 21, [1, 9, 10, 20])


def test_it_is_the_function_of_transformers() -> None:
    made = KimiDelta.of([Run(20, 3)], 3, 16, 16, torch.float32)
    qkv, betas, gates, rate, bias = (each[2:22] if each.shape[0] > 20 else each for each in made.inputs)
    q, k, v = qkv.view(1, 20, 3, 3, 16).unbind(2)
    g = -rate.exp()[:, None] * torch.nn.functional.softplus(gates.view(1, 20, 3, 16) + bias)
    state = made.state[made.runs.rows]
    expected, _ = recurrent_kimi_delta_attention(q, k, v, g, betas[None].sigmoid(), state, False, True)
    out, _ = made.run(kernels.kimi_delta)
    torch.testing.assert_close(out[2:22], expected[0])


def test_what_the_kernels_do_not_read_is_refused() -> None:
    made = KimiDelta.of([Run(3)], 4, 16, 8, torch.float32)
    qkv, betas, gates, rate, bias = made.inputs
    other = {
        "do not fit: .*'qkv': \\(8, 159\\)": (qkv[:, 1:], betas, gates, rate, bias),
        "do not fit: .*'betas': \\(8, 3\\)": (qkv, betas[:, 1:], gates, rate, bias),
        "do not fit: .*'gates': \\(8, 63\\)": (qkv, betas, gates[:, 1:], rate, bias),
        "do not fit: .*'bias': \\(4, 15\\)": (qkv, betas, gates, rate, bias[:, 1:]),
        "must have one type": (qkv, betas, gates.half(), rate, bias),
        "must be float32": (qkv, betas, gates, rate.half(), bias),
        "stride 1": (qkv, betas, gates.t().contiguous().t(), rate, bias),
        "bias, state and out must be contiguous": (qkv, betas, gates, rate, bias.t().contiguous().t()),
    }
    for message, inputs in other.items():
        with pytest.raises(ValueError, match=f"kimi_delta: .*({message})"):
            replace(made, inputs=inputs).run(kimi_delta_triton)
    with pytest.raises(ValueError, match="heads have 16 by 272 elements; 256 are the most"):
        KimiDelta.of([Run(1)], 1, 16, 272, torch.float32).run(kimi_delta_triton)

"""The torch implementation beside the formula and beside Transformers, and what the operator refuses."""

from dataclasses import replace

import pytest
import torch
from kernel_support.mamba import ALONE, LENGTHS, Run, check_cuts, lru, runs_of
from transformers import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

import text_generation_kernels as kernels
from text_generation_kernels import LruDynamics, Runs
from text_generation_kernels.recurrent.gated_lru import gated_lru_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("blocks", "width"), [(1, 7), (3, 8)])
def test_chunks_continue_their_requests_and_touch_nothing_else(blocks: int, width: int, dtype: torch.dtype) -> None:
    lru(runs_of(LENGTHS), blocks, width, dtype).check(kernels.gated_lru)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_continue_their_requests_and_touch_nothing_else(dtype: torch.dtype) -> None:
    lru(ALONE, 3, 8, dtype).decodes.check(kernels.gated_lru)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("blocks", "width"), [(5, 8), (1, 37)])
def test_results_do_not_depend_on_where_a_run_is_cut(blocks: int, width: int, dtype: torch.dtype) -> None:
    check_cuts(kernels.gated_lru, lru([Run(113)], blocks, width, dtype))


def test_transformers_computes_the_same() -> None:
    """Where the gates of the results are open."""
    torch.manual_seed(0)
    config = RecurrentGemmaConfig(hidden_size=24, lru_width=24, num_attention_heads=3)
    module = RecurrentGemmaRglru(config).requires_grad_(False)
    for weight in module.parameters():
        weight.normal_()
    x = torch.randn(20, 24)
    expected = module(x[None], torch.arange(20)[None])[0]
    blocks, gate = x.view(20, 3, 8).transpose(0, 1), torch.full_like(x, 30.0)
    stored = torch.cat((module.recurrent_gate_weight, module.input_gate_weight), dim=2)
    gates = torch.bmm(blocks, stored).transpose(0, 1).flatten(1)
    rate = -8.0 * torch.nn.functional.softplus(module.recurrent_param)
    bias = torch.stack((module.recurrent_gate_bias.flatten(), module.input_gate_bias.flatten()))
    whole = torch.tensor([20], dtype=torch.int32)
    runs = Runs(torch.tensor([0]), torch.tensor([0, 20], dtype=torch.int32), whole, 20)
    out, state = torch.empty_like(x), torch.full((1, 24), float("nan"))
    kernels.gated_lru(x, gates, gate, LruDynamics(rate, bias, 8), state, runs, out)
    torch.testing.assert_close(out / 30.0, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state, module.recurrent_states, atol=1e-5, rtol=1e-4)


def test_what_the_kernel_does_not_read_is_refused() -> None:
    made = lru([Run(3)], 2, 4, torch.float32)
    x, gates, z = made.inputs
    turned = x.t().contiguous().t()
    other = {
        "do not fit": {"kv_lens": made.kv_lens[:0]},
        "no blocks of 3": {"dynamics": replace(made.dynamics, width=3)},
        "one type and stride 1": {"inputs": (turned, gates, z)},
        "must have one type": {"inputs": (x.half(), gates, z)},
        "state must be float32": {"state": made.state.half()},
    }
    for message, tensors in other.items():
        with pytest.raises(ValueError, match=f"gated_lru: .*{message}"):
            replace(made, **tensors).run(gated_lru_triton)

from collections.abc import Callable

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

import text_generation_kernels as kernels

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("name", "oracle"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh")])
def test_gate_is_activated_and_up_is_not(name: str, oracle: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(5, 2 * 24).to(dtype)
    activation: Callable[[torch.Tensor], torch.Tensor] = ACT2FN[oracle]
    expected = activation(gate_up[:, :24].double()) * gate_up[:, 24:].double()
    out = torch.full((5, 24), float("nan"), dtype=dtype)

    kernels.act_and_mul(gate_up, name, out)

    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("bound", [7, 16])
def test_bounded_activations_are_those_of_step(bound: int) -> None:
    torch.manual_seed(0)
    gate_up = 12 * torch.randn(5, 2 * 24)  # beyond both bounds
    experts = Step3p7Experts(Step3p7TextConfig(hidden_size=8, n_routed_experts=1), swiglu_limit=bound)
    out = torch.full((5, 24), float("nan"))

    kernels.act_and_mul(gate_up, f"silu_within_{bound}", out)

    torch.testing.assert_close(out, experts._apply_gate(gate_up))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_clamped_swiglu_is_that_of_gpt_oss(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = (5 * torch.randn(5, 2 * 24)).to(dtype)  # beyond both clamps
    experts = GptOssExperts(GptOssConfig(hidden_size=8, intermediate_size=24, num_local_experts=1))
    # There gate and up are interleaved.
    expected = experts._apply_gate(gate_up.double().view(5, 2, 24).transpose(1, 2).flatten(1))
    out = torch.full((5, 24), float("nan"), dtype=dtype)

    kernels.act_and_mul(gate_up, "clamped_swiglu", out)

    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])

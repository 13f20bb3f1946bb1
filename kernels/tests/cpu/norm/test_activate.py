import pytest
import torch
from transformers.activations import ACT2FN

import text_generation_kernels as kernels

ORACLES = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2"}
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", list(ORACLES))
def test_activations_are_those_of_transformers(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 24).to(dtype)
    expected = ACT2FN[ORACLES[name]](x.double())
    kernels.activate(x, name, x)
    torch.testing.assert_close(x.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])

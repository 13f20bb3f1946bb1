import pytest
import torch

import text_generation_kernels as kernels

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_is_rounded_where_torch_rounds(dtype: torch.dtype) -> None:
    """But for sigmoids in the middle between two numbers, values are those of torch."""
    torch.manual_seed(0)
    x, gate = torch.randn(5, 48).to(dtype), 3 * torch.randn(5, 100).to(dtype)[:, 20:68]
    expected = x * torch.sigmoid(gate)
    out = torch.full_like(x, float("nan"))
    kernels.sigmoid_gate(x, gate, out)
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if dtype != torch.float32:
        assert (out == expected).float().mean() > 0.99
    kernels.sigmoid_gate(x, gate, x)
    assert torch.equal(x, out)


def test_large_gates_saturate() -> None:
    gate = torch.tensor([[-1e30, -1e4, 0.0, 1e4, 1e30]])
    out = torch.full_like(gate, float("nan"))
    kernels.sigmoid_gate(torch.full_like(gate, 2.0), gate, out)
    assert out.tolist() == [[0.0, 0.0, 1.0, 2.0, 2.0]]

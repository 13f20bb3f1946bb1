import pytest
import torch
from torch.nn import functional

import text_generation_kernels as kernels


@pytest.mark.parametrize("with_bias", [False, True])
def test_is_the_affine_map(with_bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 20), torch.randn(7, 20)
    bias = torch.randn(7) if with_bias else None
    out = torch.full((3, 7), float("nan"))
    kernels.linear(x, weight, bias, out)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_fused_activation() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 20), torch.randn(14, 20), torch.randn(14)
    out = torch.full((3, 7), float("nan"))
    kernels.linear(x, weight, bias, out, "silu")
    gate, up = functional.linear(x, weight, bias).chunk(2, dim=-1)
    torch.testing.assert_close(out, functional.silu(gate) * up)

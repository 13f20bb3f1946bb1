"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu


def _check(x: Tensor, gate: Tensor) -> None:
    """A unit in the last place from torch, where the sigmoid is in the middle between two numbers, and seldom so."""
    expected, out = x * torch.sigmoid(gate), torch.full_like(x, float("nan"))
    kernels.sigmoid_gate(x, gate, out)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=2 * torch.finfo(x.dtype).eps)
    if x.dtype != torch.float32:
        assert (out == expected).float().mean() > 0.99
    kernels.sigmoid_gate(x, gate, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "n"), [(1, 4096), (7, 100), (3, 33), (256, 4096), (70_000, 16)])
def test_is_that_of_torch(tokens: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, product = torch.randn(tokens, n, device="cuda", dtype=dtype), torch.randn(tokens, 2 * n + 8, device="cuda")
    _check(x, 3 * product.to(dtype)[:, n : 2 * n])


def test_offsets_beyond_32_bits() -> None:
    storage = torch.empty(2**31 + 64, device="cuda", dtype=torch.bfloat16)
    gate = storage.as_strided((3, 32), (2**30, 1)).normal_()
    _check(torch.randn(3, 32, device="cuda", dtype=torch.bfloat16), gate)

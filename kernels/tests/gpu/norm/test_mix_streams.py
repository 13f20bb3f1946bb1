"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "n"), [(1, 2048), (7, 100), (3, 33), (256, 2048), (70_000, 16)])
@pytest.mark.parametrize("read", [4, 1])
def test_is_the_sum_in_float64(tokens: int, n: int, read: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base, x = (torch.randn(tokens, each, n, device="cuda", dtype=dtype) for each in (4, read))
    coefs = torch.randn(tokens, 4, read, device="cuda")
    expected = base.double() + torch.einsum("tij,tjn->tin", coefs.double(), x.double())
    out = torch.full_like(base, float("nan"))
    kernels.mix_streams(base, coefs, x, out)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    kernels.mix_streams(base, coefs, x, base)
    assert torch.equal(base, out)

import pytest
import torch

import text_generation_kernels as kernels

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("streams", "read"), [(4, 4), (4, 1), (1, 3)])
def test_is_the_sum_in_float64(streams: int, read: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base, x = torch.randn(5, streams, 24).to(dtype), torch.randn(5, read, 24).to(dtype)
    coefs = torch.randn(5, streams, read)
    expected = (base.double() + coefs.double() @ x.double()).to(dtype)
    out = torch.full_like(base, float("nan"))
    kernels.mix_streams(base, coefs, x, out)
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_may_change_its_base_in_place() -> None:
    torch.manual_seed(0)
    base, x, coefs = torch.randn(3, 4, 8), torch.randn(3, 1, 8), torch.randn(3, 4, 1)
    out = torch.empty_like(base)
    kernels.mix_streams(base, coefs, x, out)
    kernels.mix_streams(base, coefs, x, base)
    assert torch.equal(base, out)

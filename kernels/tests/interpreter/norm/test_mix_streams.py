"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch

from text_generation_kernels.norm.mix_streams import mix_streams_torch, mix_streams_triton
from text_generation_kernels.runtime.settings import nearest

TILE = nearest("act_and_mul", n=1)["BLOCK"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("n", [1, TILE - 1, TILE, TILE + 1])
@pytest.mark.parametrize(("m", "k"), [(4, 4), (4, 1), (3, 2)])
def test_tile_boundaries(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # Strides of their own.
    base, x, storage = (torch.randn(2, each, n + 5).to(dtype) for each in (m, k + 1, m))
    base, x, out = base[:, :, 2 : n + 2], x[:, 1:, 1 : n + 1], storage[:, :, 3 : n + 3]
    coefs, expected, untouched = torch.randn(2, m, k), torch.empty(2, m, n, dtype=dtype), storage.clone()
    mix_streams_torch(base, coefs, x, expected)

    mix_streams_triton(base, coefs, x, out)
    mix_streams_triton(base, coefs, x, base)

    torch.testing.assert_close(out, expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    assert torch.equal(base, out)
    assert torch.equal(storage[:, :, :3], untouched[:, :, :3])
    assert torch.equal(storage[:, :, n + 3 :], untouched[:, :, n + 3 :])


def test_what_the_kernel_cannot_do_is_refused() -> None:
    base, coefs = torch.randn(4, 2, 8), torch.randn(4, 2, 2)
    with pytest.raises(ValueError, match="mix_streams: shapes of base, coefs, x, out do not fit"):
        mix_streams_triton(base, coefs, base[:, :1], torch.empty_like(base))
    with pytest.raises(ValueError, match="stride 1"):
        mix_streams_triton(base, coefs, torch.randn(4, 8, 2).transpose(1, 2), torch.empty_like(base))
    with pytest.raises(ValueError, match="coefs be contiguous"):
        mix_streams_triton(base, coefs.transpose(1, 2), base, torch.empty_like(base))
    mix_streams_triton(base[:0], coefs[:0], base[:0], base[:0])

"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from torch import Tensor

from text_generation_kernels.norm.stream_coefs import stream_coefs_torch, stream_coefs_triton


def _given(tokens: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(n)
    return 4 * torch.randn(tokens, (n + 2) * n), torch.randn((n + 2) * n), torch.randn(3)


def _room(tokens: int, n: int) -> tuple[Tensor, Tensor]:
    return torch.full((tokens, 1, n), float("nan")), torch.full((tokens, n, n + 1), float("nan"))


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16])
def test_is_what_torch_computes(n: int, iterations: int) -> None:
    given, expected, found = _given(3, n), _room(3, n), _room(3, n)
    stream_coefs_torch(*given, 1e-3, iterations, *expected)
    stream_coefs_triton(*given, 1e-3, iterations, *found)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_what_the_kernel_cannot_do_is_refused() -> None:
    (mixes, base, scale), (into, back) = _given(2, 4), _room(2, 4)
    with pytest.raises(ValueError, match="stream_coefs: shapes of mixes, base, scale, into, back do not fit"):
        stream_coefs_triton(mixes, base, scale, 1e-6, 20, into, back[:, :, 1:])
    with pytest.raises(ValueError, match="float32 and contiguous"):
        stream_coefs_triton(mixes.double(), base, scale, 1e-6, 20, into, back)
    stream_coefs_triton(mixes[:0], base, scale, 1e-6, 20, into[:0], back[:0])

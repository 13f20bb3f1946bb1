"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch

import text_generation_kernels as kernels
from text_generation_kernels.norm.stream_coefs import stream_coefs_torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tokens", [1, 7, 70_000])
@pytest.mark.parametrize("n", [3, 4])
def test_is_what_torch_computes(n: int, tokens: int) -> None:
    torch.manual_seed(0)
    size = (n + 2) * n
    given = torch.randn(tokens, size, device="cuda"), torch.randn(size, device="cuda"), torch.randn(3, device="cuda")
    rooms = [(torch.empty(tokens, 1, n, device="cuda"), torch.empty(tokens, n, n + 1, device="cuda")) for _ in range(2)]
    stream_coefs_torch(*given, 1e-6, 20, *rooms[0])
    kernels.stream_coefs(*given, 1e-6, 20, *rooms[1])
    torch.testing.assert_close(rooms[1], rooms[0], atol=1e-5, rtol=1e-4)

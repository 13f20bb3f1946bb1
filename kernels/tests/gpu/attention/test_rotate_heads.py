"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim"), [(1, 2, 2), (7, 32, 80), (5476, 32, 80), (300, 50, 128), (64, 24, 72)]
)
def test_is_that_of_torch(tokens: int, heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Of queries and keys before values."""
    torch.manual_seed(0)
    storage = torch.randn(tokens, heads + heads // 2, head_dim, device="cuda").to(dtype)
    angles = 100 * torch.randn(tokens, head_dim // 2, device="cuda")
    cos, sin = angles.cos(), angles.sin()
    x, y = storage[:, :heads].double().chunk(2, dim=-1)
    expected = torch.cat([x * cos[:, None] - y * sin[:, None], y * cos[:, None] + x * sin[:, None]], dim=-1)
    values = storage[:, heads:].clone()
    kernels.rotate_heads(storage[:, :heads], cos, sin)
    torch.testing.assert_close(
        storage[:, :heads].double(), expected, atol=2 * torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps
    )
    assert torch.equal(storage[:, heads:], values)

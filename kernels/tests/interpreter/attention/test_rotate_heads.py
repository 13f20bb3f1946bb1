"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch

from text_generation_kernels.attention.rotate_heads import rotate_heads_torch, rotate_heads_triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (8, 16), (5, 72), (32, 80)])
def test_is_that_of_torch(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Of heads that lie between others, as queries and keys lie before values."""
    torch.manual_seed(0)
    storage = torch.randn(3, heads + 3, head_dim).to(dtype)
    angles = torch.randn(3, head_dim // 2)
    expected = storage.clone()
    rotate_heads_torch(expected[:, 1 : heads + 1], angles.cos(), angles.sin())
    rotate_heads_triton(storage[:, 1 : heads + 1], angles.cos(), angles.sin())
    torch.testing.assert_close(storage, expected, atol=1e-6, rtol=torch.finfo(dtype).eps)
    assert torch.equal(storage[:, 0], expected[:, 0])
    assert torch.equal(storage[:, heads + 1 :], expected[:, heads + 1 :])

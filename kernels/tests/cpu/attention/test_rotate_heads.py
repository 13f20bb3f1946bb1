import pytest
import torch

import text_generation_kernels as kernels
from text_generation_kernels.attention.rotate_heads import rotate_heads_triton


def test_is_a_multiplication_of_complex_numbers() -> None:
    torch.manual_seed(0)
    storage, angles = torch.randn(5, 9, 12), torch.randn(5, 6)
    heads, before = storage[:, 2:5], storage.clone()
    kernels.rotate_heads(heads, angles.cos(), angles.sin())
    x, y = before[:, 2:5].chunk(2, dim=-1)
    turned = torch.complex(x, y) * torch.polar(torch.ones(5, 1, 6), angles[:, None])
    torch.testing.assert_close(heads, torch.cat([turned.real, turned.imag], dim=-1))
    assert torch.equal(storage[:, :2], before[:, :2])
    assert torch.equal(storage[:, 5:], before[:, 5:])


def test_what_the_kernel_cannot_do_is_refused() -> None:
    heads, angles = torch.randn(4, 2, 8), torch.randn(4, 4)
    with pytest.raises(ValueError, match="rotate_heads: shapes of heads, cos, sin do not fit"):
        rotate_heads_triton(heads, angles, angles[:, :3])
    with pytest.raises(ValueError, match="rotate_heads: shapes"):
        rotate_heads_triton(heads[..., :7], angles[:, :3], angles[:, :3])
    with pytest.raises(ValueError, match="stride 1"):
        rotate_heads_triton(torch.randn(4, 8, 2).transpose(1, 2), angles, angles)
    with pytest.raises(ValueError, match="contiguous"):
        rotate_heads_triton(heads, torch.randn(4, 4).t(), angles)
    rotate_heads_triton(heads[:0], angles[:0], angles[:0])

"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.norm.gated_norm import gated_norm_torch, gated_norm_triton

EPS = 1e-5


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "groups", "size"), [(1, 1, 1), (33, 1, 63), (11, 3, 64), (3, 5, 65), (2, 1, 2048), (2, 2, 2049)], ids=str
)
def test_tile_boundaries(
    tokens: int, groups: int, size: int, dtype: torch.dtype, own_weights: bool, gate_first: bool
) -> None:
    """Thread blocks with groups of several tokens, the last one not full, and of one group."""
    torch.manual_seed(0)
    # Strides of their own.
    x, gate, out = (torch.randn(tokens, groups + 1 + each, size).to(dtype)[:, 1 : groups + 1] for each in range(3))
    weight = torch.rand(groups, size).to(dtype) if own_weights else torch.rand(size).to(dtype)
    expected, torch_out = reference.gated_norm(x, gate, weight, EPS, gate_first), torch.empty_like(x)
    gated_norm_torch(x, gate, weight, EPS, gate_first, torch_out)

    gated_norm_triton(x, gate, weight, EPS, gate_first, out)
    gated_norm_triton(x, gate, weight, EPS, gate_first, x)

    # At most twice as far from the formula as torch in the same type.
    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5
    assert torch.equal(x, out)


@pytest.mark.parametrize("gate_first", [False, True])
def test_float32_weight_beside_16_bits(gate_first: bool) -> None:
    torch.manual_seed(0)
    x, gate, weight = torch.randn(3, 2, 40).half(), torch.randn(3, 2, 40).half(), torch.rand(40)
    expected = reference.gated_norm(x, gate, weight, EPS, gate_first)
    gated_norm_triton(x, gate, weight, EPS, gate_first, x)
    # Rounded once.
    torch.testing.assert_close(x.double(), expected, atol=1e-4, rtol=2**-11)


def test_opened_by_the_sigmoid() -> None:
    torch.manual_seed(0)
    x, gate, weight = torch.randn(3, 2, 40), torch.randn(3, 2, 40), torch.rand(40)
    expected = reference.gated_norm(x, gate, weight, EPS, False, "sigmoid")
    gated_norm_triton(x, gate, weight, EPS, False, x, "sigmoid")
    torch.testing.assert_close(x.double(), expected, atol=1e-5, rtol=1e-5)


def test_nothing_else_is_written() -> None:
    storage, x = torch.full((5, 100), float("nan")), torch.randn(5, 2, 32)
    out = storage[:, 20:84].view(5, 2, 32)
    gated_norm_triton(x, x, torch.ones(32), EPS, True, out)
    assert storage.isnan().sum() == 5 * 36
    gated_norm_triton(x[:0], x[:0], torch.ones(32), EPS, True, out[:0])

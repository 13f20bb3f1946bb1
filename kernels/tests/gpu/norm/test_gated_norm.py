"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support import reference
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.norm.gated_norm import gated_norm_torch

pytestmark = pytest.mark.gpu
EPS = 1e-5


def _check(x: Tensor, gate: Tensor, weight: Tensor, gate_first: bool) -> None:
    expected = reference.gated_norm(x, gate, weight, EPS, gate_first)
    out, torch_out = torch.full_like(x, float("nan")), torch.empty_like(x)
    gated_norm_torch(x, gate, weight, EPS, gate_first, torch_out)

    kernels.gated_norm(x, gate, weight, EPS, gate_first, out)
    kernels.gated_norm(x, gate, weight, EPS, gate_first, x)

    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5
    assert torch.equal(x, out)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 7, 256])
@pytest.mark.parametrize(("groups", "size"), [(32, 128), (1, 8192), (8, 1024), (3, 100), (1, 12288)])
def test_as_close_to_the_formula_as_torch(
    groups: int, size: int, tokens: int, dtype: torch.dtype, own_weights: bool, gate_first: bool
) -> None:
    torch.manual_seed(0)
    x, width = torch.randn(tokens, groups, size, device="cuda", dtype=dtype), groups * size
    # A slice of a GEMM output.
    product = torch.randn(tokens, 2 * width + 64, device="cuda", dtype=dtype)
    weight = torch.rand((groups, size) if own_weights else size, device="cuda", dtype=dtype)
    _check(x, product[:, width : 2 * width].unflatten(1, (groups, size)), weight, gate_first)


@pytest.mark.parametrize("gate_first", [False, True])
def test_float32_weight_beside_16_bits(gate_first: bool) -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(2, 70, 32, 128, device="cuda").bfloat16()
    _check(x, gate, torch.rand(128, device="cuda"), gate_first)


def test_opened_by_the_sigmoid() -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(2, 70, 32, 128, device="cuda").bfloat16()
    weight = torch.rand(128, device="cuda")
    expected = reference.gated_norm(x, gate, weight, EPS, False, "sigmoid")
    kernels.gated_norm(x, gate, weight, EPS, False, x, "sigmoid")
    torch.testing.assert_close(x.double(), expected, atol=1e-4, rtol=2**-8)


def test_the_bits_of_a_token_do_not_depend_on_its_place() -> None:
    x, gate = torch.randn(2, 50, 5, 128, device="cuda").bfloat16()
    weight, out, alone = torch.rand(128, device="cuda").bfloat16(), torch.empty_like(x), torch.empty_like(x)
    kernels.gated_norm(x, gate, weight, EPS, False, out)
    for token in range(50):
        only = slice(token, token + 1)
        kernels.gated_norm(x[only], gate[only], weight, EPS, False, alone[only])
    assert torch.equal(alone, out)

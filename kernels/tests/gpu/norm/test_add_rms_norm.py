"""The Triton kernel as it serves: bfloat16, through the dispatcher, on the device."""

import pytest
import torch
from kernel_support import reference

import text_generation_kernels as kernels
from text_generation_kernels.norm.add_rms_norm import add_rms_norm_torch

pytestmark = pytest.mark.gpu
EPS = 1e-5


@pytest.mark.parametrize("tokens", [1, 7, 256])
@pytest.mark.parametrize("hidden", [64, 4096, 5120, 8192])
def test_as_close_to_the_formula_as_torch(hidden: int, tokens: int) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.rand(hidden, device="cuda", dtype=torch.bfloat16)
    _, expected = reference.add_rms_norm(x, residual, weight, EPS)
    torch_residual, torch_out = residual.clone(), torch.empty_like(x)
    add_rms_norm_torch(x, torch_residual, weight, EPS, torch_out)
    out = torch.full_like(x, float("nan"))

    kernels.add_rms_norm(x, residual, weight, EPS, out)

    assert torch.equal(residual, torch_residual)
    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


def test_the_switch_chooses_the_implementation() -> None:
    x, residual = (torch.randn(4, 8, device="cuda").t() for _ in range(2))
    weight, out = torch.ones(4, device="cuda"), torch.empty(8, 4, device="cuda")
    with pytest.raises(ValueError, match="stride 1"):
        kernels.add_rms_norm(x, residual, weight, EPS, out)
    kernels.use_triton(False)
    try:
        kernels.add_rms_norm(x, residual, weight, EPS, out)
    finally:
        kernels.use_triton(True)


def test_replays_in_a_graph() -> None:
    x, residual = (torch.randn(8, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight, out = torch.ones(256, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
    start = residual.clone()
    kernels.add_rms_norm(x, residual, weight, EPS, out)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.add_rms_norm(x, residual, weight, EPS, out)
    residual.copy_(start)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)


def test_the_addend_may_be_scaled_and_normalised() -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(9, 3584, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight, x_weight = 1 + torch.randn(2, 3584, device="cuda")
    total = residual.double() + 0.22 * reference.rms_norm(x, x_weight, EPS)
    kernels.add_rms_norm(x, residual, weight, EPS, x, 0.22, x_weight)
    torch.testing.assert_close(residual.double(), total, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(x.double(), reference.rms_norm(residual, weight, EPS), atol=2e-2, rtol=2e-2)

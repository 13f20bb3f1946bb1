"""GEMMs that leave split-K partials, and the residual add + norm that adds them up."""

import pytest
import torch

import text_generation_kernels as kernels
from text_generation_server.config.spec import NormSpec
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.layers.infer import AddNorm, Norm
from text_generation_server.layers.weights import Activations, ActivationScheme, NormWeights
from text_generation_server.layers.weights.w8a8 import W8A8Linear

SIZE = 24
SCHEME = ActivationScheme(torch.float8_e4m3fn)


def _norm(kind: str) -> Norm:
    torch.manual_seed(1)
    weights = NormWeights(torch.rand(SIZE), torch.rand(SIZE) if kind == "layer" else None)
    return Norm(NormSpec(1e-5, "layer" if kind == "layer" else "rms"), weights)


def _matrix(outputs: int) -> W8A8Linear:
    torch.manual_seed(2)
    return W8A8Linear(torch.randn(outputs, SIZE).to(torch.float8_e4m3fn), torch.rand(outputs), SCHEME)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_add_norm_adds_up_split_k_partials(kind: str, scale: float) -> None:
    torch.manual_seed(0)
    group = TensorParallelGroup(0, 1, torch.device("cpu"))
    add_norm = AddNorm(group, _norm(kind), None, scale, SCHEME if kind == "rms" else None)
    partials, residual = torch.randn(3, 4, SIZE), torch.randn(4, SIZE)
    expected, expected_sum = add_norm.read(partials.sum(0), residual.clone())
    made, total = add_norm.read(partials, residual)
    torch.testing.assert_close(total, expected_sum)
    torch.testing.assert_close(made.x, expected.x)
    assert add_norm.takes_partials == (kind == "rms")


@pytest.mark.parametrize("ranks", [1, 2])
def test_several_ranks_take_no_partials(ranks: int) -> None:
    group = TensorParallelGroup(0, ranks, torch.device("cpu"))
    assert AddNorm(group, _norm("rms")).takes_partials == (ranks == 1)


def test_without_a_kernel_split_k_leaves_no_partials() -> None:
    x = Activations(torch.randn(5, SIZE))
    assert torch.equal(_matrix(8).split_k(x), _matrix(8).apply(x))


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("wants", [None, SCHEME, ActivationScheme(torch.int8, 16)])
def test_a_gated_gemm_is_the_gemm_and_its_activation(wants: ActivationScheme | None, block: int | None) -> None:
    x = Activations(torch.randn(5, SIZE))
    expected, room = Activations.to_fill(torch.empty(5, 32), wants)
    kernels.act_and_mul(_matrix(64).apply(x, block), "silu", expected.x, room)
    made = _matrix(64).gated(x, "silu", wants, block)
    assert torch.equal(made.x, expected.x)
    if wants is not None:
        assert made.scheme is wants
        assert all(map(torch.equal, (made.eight.float(), made.scale), (expected.eight.float(), expected.scale)))

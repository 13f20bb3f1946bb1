"""Products that are left in parts, and what adds them up."""

import pytest
import torch

import text_generation_kernels as kernels
from text_generation_server.config.spec import NormSpec
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.layers.infer import Junction, Norm
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
def test_a_junction_adds_up_parts(kind: str, scale: float) -> None:
    torch.manual_seed(0)
    group = TensorParallelGroup(0, 1, torch.device("cpu"))
    junction = Junction(group, _norm(kind), None, scale, SCHEME if kind == "rms" else None)
    parts, residual = torch.randn(3, 4, SIZE), torch.randn(4, SIZE)
    expected, expected_sum = junction.read(parts.sum(0), residual.clone())
    made, total = junction.read(parts, residual)
    torch.testing.assert_close(total, expected_sum)
    torch.testing.assert_close(made.x, expected.x)
    assert junction.takes_parts == (kind == "rms")


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_sum_up_whole_results(ranks: int) -> None:
    group = TensorParallelGroup(0, ranks, torch.device("cpu"))
    assert Junction(group, _norm("rms")).takes_parts == (ranks == 1)


def test_where_there_is_no_kernel_a_product_is_whole() -> None:
    x = Activations(torch.randn(5, SIZE))
    assert torch.equal(_matrix(8).in_parts(x), _matrix(8).apply(x))


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("wants", [None, SCHEME, ActivationScheme(torch.int8, 16)])
def test_a_gated_product_is_the_product_and_its_activation(wants: ActivationScheme | None, block: int | None) -> None:
    x = Activations(torch.randn(5, SIZE))
    expected, room = Activations.to_fill(torch.empty(5, 32), wants)
    kernels.act_and_mul(_matrix(64).apply(x, block), "silu", expected.x, *room)
    made = _matrix(64).gated(x, "silu", wants, block)
    assert torch.equal(made.x, expected.x)
    if wants is not None:
        assert made.scheme is wants
        assert all(map(torch.equal, (made.eight.float(), made.scale), (expected.eight.float(), expected.scale)))

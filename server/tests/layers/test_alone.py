"""In deterministic mode on a CPU a token's bits depend neither on its place nor on the tokens beside it, nor on where
threads share the work.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix, ExpertMlps, RouteOptions, Routing
from text_generation_server.config.spec import Activation, DenseSpec
from text_generation_server.layers.infer.feed_forward import DenseFeedForward
from text_generation_server.layers.infer.state import LINEAR_BLOCK
from text_generation_server.layers.weights import Activations, Dense, DenseWeights

ACTIVATIONS: list[Activation] = ["silu", "gelu", "gelu_tanh"]
WIDTHS = [8192, 100, 52]
"""One whose tokens several threads share, and two with elements behind the last whole vector."""
TOKENS, HIDDEN = 100, 16


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def assert_alone_as_together(compute: Callable[[Tensor], Tensor], x: Tensor) -> None:
    together = compute(x)
    for start, end in [(0, end) for end in range(1, 20)] + [(5, 6), (31, 64), (37, 42), (63, 66), (99, 100)]:
        assert torch.equal(compute(x[start:end]), together[start:end]), (start, end)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_dense_network(activation: Activation, width: int, gated: bool) -> None:
    first, down = torch.randn(width * (1 + gated), HIDDEN), torch.randn(HIDDEN, width) / width**0.5
    network = DenseFeedForward(DenseSpec(width, activation, gated=gated), DenseWeights(Dense(first), Dense(down)))
    state: Any = SimpleNamespace(linear_block=LINEAR_BLOCK)
    assert_alone_as_together(lambda x: network.forward(Activations(x), state), torch.randn(TOKENS, HIDDEN))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "clamped_swiglu"])
def test_experts(activation: str, width: int) -> None:
    experts = 8
    gate_up = ExpertMatrix(torch.randn(experts, 2 * width, HIDDEN) / HIDDEN**0.5)
    mlps = ExpertMlps(gate_up, ExpertMatrix(torch.randn(experts, HIDDEN, width) / width**0.5), activation)

    def compute(x: Tensor) -> Tensor:
        ids, weights = torch.arange(experts, dtype=torch.int32).expand(len(x), -1), torch.ones(len(x), experts)
        out = torch.empty_like(x)
        kernels.moe_experts(x, Routing(ids.contiguous(), weights), mlps, True, out)
        return out

    assert_alone_as_together(compute, 5 * torch.randn(TOKENS, HIDDEN))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("experts", [6, 60, 384])
def test_weights_of_experts(experts: int, gated: bool) -> None:
    options = RouteOptions(4, score="sigmoid", norm=0, shared=int(gated), shared_gate=gated)

    def compute(logits: Tensor) -> Tensor:
        routing = Routing.empty(len(logits), options.slots)
        kernels.moe_route(logits, None, options, routing)
        return routing.weights

    for _ in range(10):
        assert_alone_as_together(compute, 3 * torch.randn(TOKENS, experts + gated))

"""The kernels of mixtures of experts as they serve: through the dispatcher, on the device."""

import pytest
import torch
from torch import Tensor

from text_generation_server import kernels
from text_generation_server.kernels import RouteOptions
from text_generation_server.kernels.moe_experts import Tiles, moe_experts_torch, run_experts, tiles_of

pytestmark = pytest.mark.gpu
SHAPES = [(128, 8, 2048, 768), (8, 2, 1024, 3584), (32, 4, 2880, 1440), (16, 2, 80, 40)]
"""Experts, experts of a token, hidden and inner sizes."""


def _inputs(tokens: int, shape: tuple[int, ...], dtype: torch.dtype, biased: bool) -> list[Tensor | None]:
    experts, top_k, hidden, inner = shape
    torch.manual_seed(tokens)
    options = {"device": "cuda", "dtype": dtype}
    logits = torch.randn(tokens, experts, device="cuda")
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device="cuda")
    weights = torch.empty(tokens, top_k, device="cuda")
    kernels.moe_route(logits, None, RouteOptions(top_k), ids, weights)
    gate_up = torch.randn(experts, 2 * inner, hidden, **options) / hidden**0.5  # type: ignore[arg-type]
    down = torch.randn(experts, hidden, inner, **options) / inner**0.5  # type: ignore[arg-type]
    biases = (torch.randn(experts, 2 * inner, **options), torch.randn(experts, hidden, **options)) if biased else None  # type: ignore[arg-type]
    first, second = biases or (None, None)
    return [torch.randn(tokens, hidden, **options), ids, weights, gate_up, first, down, second]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 2, 8, 65, 700])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_torch(shape: tuple[int, ...], tokens: int, dtype: torch.dtype) -> None:
    biased = shape[0] == 32
    activation = "clamped_swiglu" if biased else "silu"
    inputs = _inputs(tokens, shape, dtype, biased)
    out, expected = (torch.full_like(inputs[0], float("nan")) for _ in range(2))  # type: ignore[arg-type]
    moe_experts_torch(*inputs, activation, False, expected)  # type: ignore[arg-type]
    for deterministic in (False, True):
        kernels.moe_experts(*inputs, activation, deterministic, out)
        limit = 1e-4 if dtype == torch.float32 else 1e-2
        assert (out.float() - expected.float()).norm() <= limit * expected.float().norm()


@pytest.mark.parametrize("height", [1, 16, 64, 128])
def test_every_tile_gives_the_same(height: int) -> None:
    inputs = _inputs(40, SHAPES[0], torch.bfloat16, biased=False)
    out, expected = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])  # type: ignore[arg-type]
    moe_experts_torch(*inputs, "silu", False, expected)  # type: ignore[arg-type]
    tiles: Tiles = tiles_of(height, inputs[3], inputs[5])  # type: ignore[arg-type]
    run_experts(*inputs, "silu", tiles, out)  # type: ignore[arg-type]
    assert (out.float() - expected.float()).norm() <= 1e-2 * expected.float().norm()


def test_a_token_has_the_same_bits_alone_and_among_others_in_deterministic_mode() -> None:
    inputs = _inputs(600, SHAPES[0], torch.bfloat16, biased=False)
    results = []
    for tokens in (1, 3, 64, 600):
        part = [each[:tokens] if index < 3 else each for index, each in enumerate(inputs)]  # type: ignore[index]
        out = torch.empty_like(part[0])  # type: ignore[arg-type]
        kernels.moe_experts(*part, "silu", True, out)
        results.append(out[0])
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_graph_replays_other_choices() -> None:
    inputs = _inputs(30, SHAPES[0], torch.bfloat16, biased=False)
    logits = torch.empty(30, 128, device="cuda")
    out, expected = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])  # type: ignore[arg-type]

    def run() -> None:
        kernels.moe_route(logits, None, RouteOptions(8), inputs[1], inputs[2])
        kernels.moe_experts(*inputs, "silu", False, out)

    logits.normal_()
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for spread in (1.0, 0.0, 30.0):
        logits.normal_().mul_(spread)
        graph.replay()
        moe_experts_torch(*inputs, "silu", False, expected)  # type: ignore[arg-type]
        assert (out.float() - expected.float()).norm() <= 1e-2 * expected.float().norm()

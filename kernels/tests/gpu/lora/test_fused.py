"""Kernels that fuse shrink and expand, as they serve: bfloat16, in graphs, with early launches."""

import pytest
import torch
from kernel_support.adapters import Range, Site, Step
from torch import Tensor

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
RANKS = (16, 8, 64, 1, 40, 128)
QKV: list[Range] = [(0, 4096, 0), (4096, 5120, 1), (5120, 6144, 2)]
GATE_UP: list[Range] = [(0, 14336, 0), (14336, 28672, 1)]
DOWN: list[Range] = [(0, 4096, 0)]
SITES = {"qkv": (QKV, 4096), "gate_up": (GATE_UP, 4096), "down": (DOWN, 14336)}


def _words() -> Tensor:
    return torch.zeros(1 << 21, dtype=torch.int64, device="cuda")


def _site(name: str) -> Site:
    ranges, inputs = SITES[name]
    return Site.of(RANKS, ranges, inputs, torch.bfloat16, "cuda")


def _some(tokens: int) -> list[int]:
    return [token * 7 % (len(RANKS) + 1) - 1 for token in range(tokens)]


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("tokens", [2, 7, 64])
def test_delta_beside_the_gemm(tokens: int, name: str) -> None:
    """In graphs of norm, GEMM and delta, or norm, delta and a GEMM that adds it, with the words of earlier steps."""
    torch.manual_seed(tokens)
    site, adapters, words = _site(name), _some(tokens), _words()
    step, (outputs, inputs) = site.step(adapters, room=4), (len(site.b[0]), SITES[name][1])
    weight = torch.randn(outputs, inputs, device="cuda").bfloat16() / inputs**0.5
    start, norm = torch.randn(tokens, inputs, device="cuda").bfloat16(), torch.ones(inputs, device="cuda").bfloat16()
    x, delta = torch.empty_like(start), torch.empty(tokens, outputs, device="cuda")
    given = step.adapters(1, words)
    splits = kernels.linear_splits(start, weight)
    partials = torch.empty(splits, tokens, outputs, device="cuda")
    out = torch.empty(tokens, outputs, device="cuda").bfloat16()

    def run(beside: bool) -> None:
        kernels.rms_norm(start, norm, 1e-5, x)
        if not beside:
            kernels.lora_delta(x, given, delta)
            kernels.adapted_linear(x, weight, None, delta, out)
        else:
            kernels.linear_split_k(x, weight, partials)
            kernels.lora_delta(x, given, delta, True)

    for beside in (False, True):
        run(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(beside)
        for _ in range(20):
            start.normal_()
            given.counts[0] += 1
            delta.fill_(float("nan"))
            graph.replay()
            expected = site.delta(x, adapters)
            assert (delta.double() - expected).norm() <= 2e-5 * expected.norm()
            if not beside:
                expected += x.double() @ weight.double().t()
                assert (out.double() - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("tokens", [2, 20, 64])
def test_linear_adds_what_adapters_do(tokens: int, activation: str | None) -> None:
    torch.manual_seed(tokens)
    weight = torch.randn(28672, 4096, device="cuda").bfloat16() / 64
    x, delta = torch.randn(tokens, 4096, device="cuda").bfloat16(), torch.randn(tokens, 28672, device="cuda")
    out = torch.empty(tokens, 28672 if activation is None else 14336, device="cuda").bfloat16()
    kernels.adapted_linear(x, weight, None, delta, out, activation)
    sums = x.double() @ weight.double().t() + delta
    gate, up = sums.chunk(2, dim=1)
    expected = sums if activation is None else torch.nn.functional.silu(gate) * up
    assert (out.double() - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.parametrize("adapter", [-1, 0, 2, 5])
def test_one_token_in_a_graph_of_a_layer(adapter: int) -> None:
    torch.manual_seed(0)
    sites, words = {name: _site(name) for name in SITES}, _words()
    weights = {
        name: torch.randn(len(site.b[0]), SITES[name][1], device="cuda").bfloat16() / SITES[name][1] ** 0.5
        for name, site in sites.items()
    }
    steps: dict[str, Step] = {name: site.step([adapter], room=3) for name, site in sites.items()}
    given = {name: step.adapters(1, words, launch) for launch, (name, step) in enumerate(steps.items())}
    norm = torch.ones(4096, device="cuda").bfloat16()
    start = torch.randn(1, 4096, device="cuda").bfloat16()
    residual, qkv = torch.empty_like(start), torch.empty(1, 6144, device="cuda").bfloat16()
    x, inner = torch.empty_like(start), torch.empty(1, 14336, device="cuda").bfloat16()

    def run() -> None:
        residual.copy_(start)
        prologue = kernels.NormPrologue(norm, 1e-5, x)
        kernels.adapted_gemv(residual, weights["qkv"], None, qkv, given["qkv"], None, prologue)
        kernels.adapted_gemv(residual, weights["gate_up"], None, inner, given["gate_up"], "silu", prologue)
        kernels.adapted_gemv(inner, weights["down"], None, residual, given["down"], adds=True)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        start.normal_()
        for each in given.values():
            each.counts[0] += 1
        graph.replay()

        def expected(name: str, read: Tensor) -> Tensor:
            return read.double() @ weights[name].double().t() + sites[name].delta(read, [adapter])

        assert (qkv.double() - expected("qkv", x)).norm() <= 1e-2 * expected("qkv", x).norm()
        gate, up = expected("gate_up", x).chunk(2, dim=1)
        gated = torch.nn.functional.silu(gate) * up
        assert (inner.double() - gated).norm() <= 1e-2 * gated.norm()
        total = start.double() + expected("down", inner)
        assert (residual.double() - total).norm() <= 1e-2 * total.norm()

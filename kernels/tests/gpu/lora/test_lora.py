"""The Triton kernels as they serve: bfloat16, through the dispatcher, on the device."""

import pytest
import torch
from kernel_support.adapters import Range, Site, Step
from torch import Tensor

import text_generation_kernels as kernels

pytestmark = pytest.mark.gpu
RANKS = (16, 8, 64, 1, 40, 128)
QKV: list[Range] = [(0, 4096, 0), (4096, 5120, 1), (5120, 6144, 2)]
GATE_UP: list[Range] = [(0, 1792, 0), (1792, 3584, 1)]
DOWN: list[Range] = [(0, 4096, 0)]
SITES = [(QKV, 4096), (GATE_UP, 4096), (DOWN, 14336), ([(0, 1000, 0)], 1100)]


def _adapters(tokens: int) -> list[int]:
    """Random ones, in runs."""
    runs = torch.randint(-1, len(RANKS), (tokens,)).tolist()
    return [adapter for adapter in runs for _ in range(1 + 7 * (adapter % 3))][:tokens]


def _step(site: Site, adapters: list[int], tile_tokens: int = 16, room: int = 4) -> Step:
    return site.step(adapters, tile_tokens, room)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tile_tokens", [16, 64])
@pytest.mark.parametrize("tokens", [1, 5, 64, 700])
@pytest.mark.parametrize(("ranges", "inputs"), SITES)
def test_float32_all_the_way(
    ranges: list[Range], inputs: int, tokens: int, tile_tokens: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    site, adapters = Site.of(RANKS, ranges, inputs, dtype, "cuda"), _adapters(tokens)
    x, partials = torch.randn(tokens, inputs, device="cuda").to(dtype), _nan(3, tokens, len(site.b[0]))
    _step(site, adapters, tile_tokens).run(x, partials[1])
    expected = site.delta(x, adapters)
    assert (partials[1].double() - expected).norm() <= 2e-5 * expected.norm()
    assert partials[::2].isnan().all()
    assert not partials[1, [token for token, adapter in enumerate(adapters) if adapter < 0]].any()


def _nan(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"), device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_are_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    site, adapters = Site.of(RANKS, QKV, 4096, dtype, "cuda"), _adapters(100)
    x, base = torch.randn(100, 4096, device="cuda").to(dtype), torch.randn(100, 6144, device="cuda").to(dtype)
    delta = _step(site, adapters).run(x, _nan(100, 6144))
    found = _step(site, adapters).run(x, base.clone(), add=True)
    assert torch.equal(found, (base.float() + delta).to(dtype))


@pytest.mark.parametrize("tokens", [5, 300])
@pytest.mark.parametrize("tile_tokens", [16, 64])
def test_a_gated_mlp_has_the_bits_of_both_kernels(tile_tokens: int, tokens: int) -> None:
    torch.manual_seed(0)
    site, adapters = Site.of(RANKS, GATE_UP, 4096, torch.bfloat16, "cuda"), _adapters(tokens)
    x, base = (torch.randn(tokens, size, device="cuda").bfloat16() for size in (4096, 3584))
    found = _step(site, adapters, tile_tokens).run_gated(x, base, "silu")
    expected = torch.empty_like(found)
    kernels.act_and_mul(_step(site, adapters, tile_tokens).run(x, base.clone(), add=True), "silu", expected)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("ranges", "inputs"), SITES)
def test_a_token_has_the_same_bits_in_any_batch_and_tile(ranges: list[Range], inputs: int) -> None:
    torch.manual_seed(0)
    site, adapters = Site.of(RANKS, ranges, inputs, torch.bfloat16, "cuda"), _adapters(300)
    x, outputs = torch.randn(300, inputs, device="cuda").bfloat16(), len(site.b[0])
    among = _step(site, adapters).run(x, _nan(300, outputs))
    for tile_tokens in (16, 64):
        assert torch.equal(_step(site, adapters, tile_tokens).run(x, _nan(300, outputs)), among)
        for token in range(0, 300, 23):
            own = slice(token, token + 1)
            alone = _step(site, adapters[own], tile_tokens).run(x[own], _nan(1, outputs))
            assert torch.equal(alone[0], among[token])


def test_a_graph_of_one_adapter_serves_many_fewer_and_none() -> None:
    torch.manual_seed(0)
    site, tokens = Site.of(RANKS, QKV, 4096, torch.bfloat16, "cuda"), 48
    x, out = torch.randn(tokens, 4096, device="cuda").bfloat16(), _nan(tokens, 6144)
    batches = [[0] * tokens, _adapters(tokens), [*range(6), *[-1] * 42], [5] * tokens, [-1] * tokens]
    most = [_step(site, batch, room=0) for batch in batches]
    tiles, work = (max(len(getattr(each, name)) for each in most) for name in ("tiles", "work"))
    steps = [_padded(each, tiles, work) for each in most]
    captured = _padded(most[0], tiles, work)
    captured.run(x, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.run(x, out)
    for step, batch in zip(steps, batches, strict=True):
        for name in ("order", "tiles", "work"):
            getattr(captured, name).copy_(getattr(step, name))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, step.run(x, _nan(tokens, 6144)))
        expected = site.delta(x, batch)
        assert (out.double() - expected).norm() <= 2e-5 * expected.norm()


def _padded(step: Step, tiles: int, work: int) -> Step:
    """With tables of these capacities."""
    all_tiles, all_work = step.tiles.new_zeros(tiles, 4), step.work.new_full((work, 2), -1)
    all_tiles[: len(step.tiles)], all_work[: len(step.work)] = step.tiles, step.work
    return Step(step.site, step.order.clone(), all_tiles, all_work, step.tile_tokens)


def test_a_layer_reads_what_the_kernels_before_it_wrote() -> None:
    """Norm, shrink, expand, GEMM, norm in a graph: dependents are launched early, and none reads too soon."""
    torch.manual_seed(0)
    site, tokens = Site.of(RANKS, DOWN, 4096, torch.bfloat16, "cuda"), 40
    adapters = _adapters(tokens)
    step = _step(site, adapters)
    weight, norm = torch.randn(4096, 4096, device="cuda").bfloat16() / 64, torch.ones(4096, device="cuda").bfloat16()
    start = torch.empty(tokens, 4096, device="cuda").bfloat16()
    residual, normed, x = torch.empty_like(start), torch.empty_like(start), torch.empty_like(start)

    def run() -> None:
        residual.copy_(start)
        kernels.rms_norm(residual, norm, 1e-5, x)
        splits = kernels.linear_splits(x, weight)
        assert splits > 1
        partials = torch.empty(splits + 1, tokens, 4096, device="cuda")
        kernels.linear_split_k(x, weight, partials[:splits])
        step.run(x, partials[splits])
        kernels.add_rms_norm(partials, residual, norm, 1e-5, normed)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        start.normal_()
        graph.replay()
        given = (start.double() * (start.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()).bfloat16()
        expected = start.double() + given.double() @ weight.double().t() + site.delta(given, adapters)
        assert (residual.double() - expected).norm() <= 1e-2 * expected.norm()

"""The kernels of mixtures of experts in Triton's interpreter: run with TRITON_INTERPRET=1."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernel_support import reference
from kernel_support.expert_codes import expert_codes
from torch import Tensor

from text_generation_kernels import ExpertMatrix, ExpertMlps, Routing, moe_experts
from text_generation_kernels.moe.experts_gemv import FusedRouter
from text_generation_kernels.moe.mixture import launch_routed
from text_generation_kernels.moe.mixture_ladder import MIXTURE, MixtureProblem
from text_generation_kernels.moe.moe_align import moe_align_triton
from text_generation_kernels.moe.moe_experts import Tiles, run_experts
from text_generation_kernels.moe.moe_route import RouteOptions, moe_route_torch, moe_route_triton
from text_generation_kernels.runtime.batches import tile_capacity

ROUTES = {
    "softmax": RouteOptions(3),
    "not divided": RouteOptions(3, norm=0, scale=0.5),
    "root of squares": RouteOptions(3, norm=2),
    "sigmoid": RouteOptions(3, "sigmoid", scale=2.5),
    "root of softplus": RouteOptions(3, "sqrtsoftplus", scale=1.5),
    "groups by best two": RouteOptions(3, "sigmoid", groups=4, top_groups=2),
    "groups by best": RouteOptions(3, norm=0, groups=4, top_groups=2, group_score="max"),
    "sparsemixer": RouteOptions(2, "sparsemixer", norm=0, jitter=0.1),
    "shared": RouteOptions(2, shared=2),
    "experts of a rank": RouteOptions(3, first=5),
    "shared with gate": RouteOptions(2, "sigmoid", shared=1, shared_gate=True),
}


@pytest.mark.parametrize("name", list(ROUTES))
def test_routes_are_those_of_torch(name: str) -> None:
    options, experts = ROUTES[name], 12
    torch.manual_seed(0)
    logits = 2 * torch.randn(5, experts + options.shared_gate + 3)[:, : experts + options.shared_gate]
    logits[3] = logits[3].round()
    logits[4] = 1.0
    bias = None if options.score == "sparsemixer" else torch.randn(experts)
    found, expected = (_routed(route, logits, bias, options) for route in (moe_route_triton, moe_route_torch))
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-5)


def test_roots_of_softplus_keep_the_bits_of_small_scores() -> None:
    logits, options = (
        torch.tensor([[-30.0, -40.0, -8.0, -6.5], [-50.0, -48.0, -49.0, -47.0]]),
        ROUTES["root of softplus"],
    )
    found, expected = (_routed(route, logits, None, options) for route in (moe_route_triton, moe_route_torch))
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], atol=0.0, rtol=1e-5)


def test_a_softmax_is_chosen_from_by_its_logits() -> None:
    """In float32 the scores of these would be equal."""
    logits = torch.tensor([[0.0, 1e-9, 5.0, 2e-9]])
    for route in (moe_route_triton, moe_route_torch):
        ids, _ = _routed(route, logits, None, RouteOptions(3))
        assert ids.tolist() == [[2, 3, 1]]


def test_ids_are_valid_whatever_the_logits_are() -> None:
    logits = torch.full((3, 12), float("nan"))
    logits[1] = float("-inf")
    logits[2, 3:] = 0.5
    for options in ROUTES.values():
        own = logits[:, : 12 - (12 - options.shared_gate) % options.groups]
        ids, _ = _routed(moe_route_triton, own, None, options)
        assert (ids + options.first >= 0).all()
        assert (ids + options.first < own.shape[1] + options.shared).all()


def _unrouted(tokens: int, options: RouteOptions) -> Routing:
    shape = tokens, options.slots
    return Routing(torch.full(shape, -99, dtype=torch.int32), torch.full(shape, float("nan")))


def _routed(
    route: Callable[..., None], logits: Tensor, bias: Tensor | None, options: RouteOptions
) -> tuple[Tensor, Tensor]:
    routing = _unrouted(len(logits), options)
    route(logits, bias, options, routing)
    return routing.ids, routing.weights


@pytest.mark.parametrize(("tokens", "experts"), [(1, 5), (40, 5), (40, 33), (1100, 3)])
def test_every_row_is_in_one_tile_of_its_expert(tokens: int, experts: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, experts, (tokens, 2), dtype=torch.int32)
    ids[ids == 1] = 0
    order, tiles, num_tiles = moe_align_triton(ids, experts, 16)
    assert torch.equal(order.long(), ids.flatten().argsort(stable=True))
    assert num_tiles.item() <= tile_capacity(ids.numel(), experts, 16)
    covered = []
    for expert, first, end in tiles[: int(num_tiles)].tolist():
        assert 0 < end - first <= 16
        assert (ids.flatten()[order[first:end].long()] == expert).all()
        covered += range(first, end)
    assert covered == list(range(ids.numel()))


def test_as_many_tiles_as_can_be_fit_the_buffers() -> None:
    for counts in itertools.product((0, 1, 15, 16, 17), repeat=3):
        if sum(counts):
            tiles = sum(-(-count // 16) for count in counts)
            assert tiles <= tile_capacity(sum(counts), 3, 16)


def _inputs(
    tokens: int, hidden: int, inner: int, dtype: torch.dtype, activation: str = "silu"
) -> tuple[Tensor, Routing, ExpertMlps]:
    """First arguments of the operator, for 5 experts of which the last one is never chosen."""
    biased, gated = activation == "clamped_swiglu", activation != "relu2_alone"
    torch.manual_seed(tokens)
    ids = torch.rand(tokens, 4).argsort(dim=1)[:, :2].int()
    first = 2 * inner if gated else inner
    x, gate_up, down = torch.randn(tokens, hidden), torch.randn(5, first, hidden), torch.randn(5, hidden, inner)
    biases = [torch.randn(5, first).to(dtype), torch.randn(5, hidden).to(dtype)] if biased else [None, None]
    scaled = [(each / each.shape[-1] ** 0.5).to(dtype) for each in (gate_up, down)]
    matrices = (ExpertMatrix(each, bias) for each, bias in zip(scaled, biases, strict=True))
    return x.to(dtype), Routing(ids, torch.rand(tokens, 2)), ExpertMlps(*matrices, activation)


def _config(block_n: int) -> dict[str, int]:
    return {"BLOCK_N": block_n, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize("height", [1, 16])
@pytest.mark.parametrize(
    ("tokens", "hidden", "inner", "dtype", "activation"),
    [
        (1, 32, 16, torch.float16, "silu"),
        (7, 31, 17, torch.float32, "gelu_tanh"),
        (23, 33, 15, torch.float16, "clamped_swiglu"),
        (3, 33, 15, torch.float32, "silu_within_7"),
        (3, 33, 15, torch.float32, "silu_below_10"),
        (7, 31, 17, torch.float32, "relu2_alone"),
        (1, 32, 40, torch.float16, "relu2_alone"),
        (2, 4100, 9, torch.float16, "silu"),
        (1, 9, 2100, torch.float16, "silu"),
    ],
)
def test_experts_at_tile_boundaries(
    tokens: int, hidden: int, inner: int, dtype: torch.dtype, activation: str, height: int
) -> None:
    inputs = _inputs(tokens, hidden, inner, dtype, activation)
    out = torch.full((tokens, hidden), float("nan"), dtype=dtype)
    run_experts(*inputs, Tiles(height, _config(32), _config(16)), out)
    expected = reference.moe_experts(*inputs)
    torch.testing.assert_close(out.double(), expected, atol=2e-2 if dtype == torch.float16 else 1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        RouteOptions(3),
        RouteOptions(3, norm=0, scale=0.5),
        RouteOptions(2, norm=2, shared=1),
        RouteOptions(3, shared_gate=True),
        RouteOptions(3, first=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("ties", ["none", "some", "all", "zeros of both signs"])
@pytest.mark.parametrize("activation", ["silu", "relu2_alone"])
def test_fused_routing_is_that_of_the_router(options: RouteOptions, ties: str, activation: str) -> None:
    torch.manual_seed(0)
    experts, held = 12 - options.shared, 12 - 2 * options.first
    logits = torch.randn(1, experts + options.shared_gate).half()
    if ties != "none":
        logits = {"some": (2 * logits).round() / 2, "all": logits * 0 - 3}.get(ties, logits * 0)
        logits[:, ::3] *= -1 if ties.startswith("zeros") else 1
    matrices = (
        ExpertMatrix((torch.randn(held, n, k) / 6).half())
        for n, k in ((20, 40), (40, 10 if activation == "silu" else 20))
    )
    mlps = ExpertMlps(*matrices, activation, all_experts=12)
    x, out = torch.randn(1, 40).half(), torch.full((1, 40), float("nan")).half()
    routing, expected = _unrouted(1, options), _unrouted(1, options)
    choice = MIXTURE.pick(MixtureProblem.of(x, logits, None, options, mlps))
    launch_routed(choice, x, FusedRouter(logits, options, routing), mlps, out, False)
    moe_route_torch(logits, None, options, expected)
    assert torch.equal(routing.ids, expected.ids)
    torch.testing.assert_close(routing.weights, expected.weights, atol=1e-6, rtol=1e-5)
    total = torch.empty_like(out)
    moe_experts(x, expected, mlps, False, total)
    torch.testing.assert_close(out, total, atol=1e-2, rtol=1e-2)


def _check_codes(
    kinds: tuple[str, str],
    tokens: int,
    sizes: tuple[int, int],
    group_size: int,
    tiles: Tiles,
    activation: str = "silu",
) -> None:
    hidden, inner = sizes
    first = 2 * inner if activation == "silu" else inner
    torch.manual_seed(tokens)
    ids = torch.rand(tokens, 2).argsort(dim=1).int()
    gate_up = expert_codes(kinds[0], 3, first, hidden, group_size, biased=tokens % 2 == 0)
    down = expert_codes(kinds[1], 3, hidden, inner, group_size, biased=tokens % 2 == 0)
    x, shares = torch.randn(tokens, hidden).half(), torch.rand(tokens, 2)
    out = torch.full((tokens, hidden), float("nan")).half()
    routing, mlps = Routing(ids, shares), ExpertMlps(gate_up, down, activation)
    run_experts(x, routing, mlps, tiles, out)
    expected = reference.moe_experts(x, routing, mlps)
    assert (out.double() - expected).norm() <= 6e-3 * expected.norm()


def _codes_config(block_n: int, fold: int) -> dict[str, int]:
    return {"BLOCK_N": block_n, "FOLD": fold, "num_warps": 2, "num_stages": 2}


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(
    "kinds",
    [
        (("symmetric", "zeros"), 128),
        (("table", "symmetric"), 32),
        (("eight", "float8"), 0),
        (("nvfp4", "nvfp4"), 16),
        (("symmetric", "zeros"), 16),
        (("table", "eight"), 16),
    ],
)
def test_experts_of_every_kind_of_codes(kinds: tuple[tuple[str, str], int], fold: int) -> None:
    _check_codes(kinds[0], 2, (40, 24), kinds[1], Tiles(16, _codes_config(64, fold), _codes_config(64, fold)))


@pytest.mark.parametrize("height", [1, 16])
@pytest.mark.parametrize(("tokens", "hidden", "inner"), [(1, 31, 64), (3, 264, 15)])
def test_experts_of_codes_at_tile_boundaries(tokens: int, hidden: int, inner: int, height: int) -> None:
    tiles = Tiles(height, _codes_config(32, 0), _codes_config(32, 0))
    for activation in ("silu", "relu2_alone"):
        _check_codes(("table", "float8"), tokens, (hidden, inner), 32, tiles, activation)
        _check_codes(("nvfp4", "nvfp4"), tokens, (hidden, inner + 8), 16, tiles, activation)


@pytest.mark.parametrize(
    ("group_size", "hidden", "inner", "activation"),
    [(128, 136, 130, "silu"), (0, 33, 20, "silu"), (0, 33, 20, "relu2_alone")],
)
def test_float8_experts_of_many_rows_are_multiplied_in_8_bits(
    group_size: int, hidden: int, inner: int, activation: str
) -> None:
    torch.manual_seed(0)
    ids = torch.rand(40, 2).argsort(dim=1).int()
    first = 2 * inner if activation == "silu" else inner
    gate_up = replace(expert_codes("float8", 3, first, hidden, group_size, biased=False), w8a8=True)
    down = replace(expert_codes("float8", 3, hidden, inner, group_size, biased=False), w8a8=True)
    x, shares = torch.randn(40, hidden).half(), torch.rand(40, 2)
    config = {"BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    out = torch.full((40, hidden), float("nan")).half()
    routing, mlps = Routing(ids, shares), ExpertMlps(gate_up, down, activation)
    run_experts(x, routing, mlps, Tiles(64, config, config), out)
    expected = reference.moe_experts(x, routing, mlps)
    # Rows are rounded to three bits of mantissa.
    assert 1e-3 * expected.norm() < (out.double() - expected).norm() <= 5e-2 * expected.norm()


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    x, routing, mlps = _inputs(20, 32, 16, torch.float16)
    tiles = Tiles(64, _config(32), _config(16))
    results = []
    for tokens in (1, 20):
        some = Routing(routing.ids[:tokens], routing.weights[:tokens])
        out = torch.empty(tokens, 32, dtype=torch.float16)
        run_experts(x[:tokens], some, mlps, tiles, out)
        results.append(out[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("height", [1, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_experts_of_other_ranks_add_nothing(packed: bool, height: int) -> None:
    """Ids of five experts, of which this rank has the middle three."""
    x, routing, mlps = _inputs(7, 32, 16, torch.float16)
    ids = routing.ids.sub_(1)
    config = _codes_config(32, 0) if packed else _config(32)
    both = [mlps.gate_up, mlps.down]
    if packed:
        both = [expert_codes("float8", 3, *each.weight.shape[1:], 0, biased=False) for each in both]
    else:
        both = [replace(each, weight=each.weight[1:4].contiguous()) for each in both]
    mlps, out = ExpertMlps(*both, "silu", all_experts=5), torch.full((7, 32), float("nan"), dtype=torch.float16)
    run_experts(x, routing, mlps, Tiles(height, config, config), out)
    here = (ids >= 0) & (ids < 3)
    assert 0 < here.sum() < here.numel()
    expected = reference.moe_experts(x, Routing(ids.where(here, 0), routing.weights.where(here, 0)), mlps)
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=1e-3)
    order, tiles, num_tiles = moe_align_triton(ids, 3, 16, 3)
    assert sum(end - first for _, first, end in tiles[: int(num_tiles)].tolist()) == here.sum()
    assert here.flatten()[order[: int(here.sum())].long()].all()


def test_no_tokens_and_what_does_not_fit() -> None:
    x, routing, mlps = _inputs(3, 32, 16, torch.float32)
    moe_experts(*_inputs(0, 32, 16, torch.float32), False, torch.empty(0, 32))
    with pytest.raises(ValueError, match="moe_experts: shapes"):
        moe_experts(x, routing, mlps, False, torch.empty(3, 31))
    with pytest.raises(ValueError, match="moe_experts: unknown activation"):
        moe_experts(x, routing, replace(mlps, activation="tanh"), False, torch.empty(3, 32))
    weight = mlps.gate_up.weight.transpose(0, 1).contiguous().transpose(0, 1)
    mlps = replace(mlps, gate_up=replace(mlps.gate_up, weight=weight))
    with pytest.raises(ValueError, match="contiguous"):
        moe_experts(x, routing, mlps, False, torch.empty(3, 32))

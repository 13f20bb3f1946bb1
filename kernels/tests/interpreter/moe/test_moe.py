"""The kernels of mixtures of experts in Triton's interpreter: run with TRITON_INTERPRET=1."""

import itertools
from dataclasses import astuple
from typing import Any

import pytest
import torch
from kernel_support import reference
from kernel_support.expert_codes import expert_codes
from torch import Tensor

from text_generation_kernels import ExpertMatrix, moe_experts
from text_generation_kernels.moe.experts_gemv import Routing
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


def _routed(route: object, logits: Tensor, bias: Tensor | None, options: RouteOptions) -> tuple[Tensor, Tensor]:
    shape = (len(logits), options.slots)
    ids, weights = torch.full(shape, -1, dtype=torch.int32), torch.full(shape, float("nan"))
    route(logits, bias, ids, weights, *astuple(options))  # type: ignore[operator]
    return ids, weights


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


def _inputs(tokens: int, hidden: int, inner: int, dtype: torch.dtype, biased: bool, gated: bool = True) -> list[Any]:
    """Arguments of the operator up to both matrices, for 5 experts of which the last one is never chosen."""
    torch.manual_seed(tokens)
    ids = torch.rand(tokens, 4).argsort(dim=1)[:, :2].int()
    first = 2 * inner if gated else inner
    x, gate_up, down = torch.randn(tokens, hidden), torch.randn(5, first, hidden), torch.randn(5, hidden, inner)
    biases = [torch.randn(5, first).to(dtype), torch.randn(5, hidden).to(dtype)] if biased else [None, None]
    scaled = [(each / each.shape[-1] ** 0.5).to(dtype) for each in (gate_up, down)]
    matrices = (ExpertMatrix(each, bias) for each, bias in zip(scaled, biases, strict=True))
    return [x.to(dtype), ids, torch.rand(tokens, 2), *matrices]


def _config(block_n: int) -> dict[str, int]:
    return {"BLOCK_N": block_n, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize("height", [1, 16])
@pytest.mark.parametrize(
    ("tokens", "hidden", "inner", "dtype", "activation"),
    [
        (1, 32, 16, torch.float16, "silu"),
        (7, 31, 17, torch.float32, "gelu_tanh"),
        (23, 33, 15, torch.float16, "clamped_swiglu"),
        (7, 31, 17, torch.float32, "relu2_alone"),
        (1, 32, 40, torch.float16, "relu2_alone"),
        (2, 4100, 9, torch.float16, "silu"),
        (1, 9, 2100, torch.float16, "silu"),
    ],
)
def test_experts_at_tile_boundaries(
    tokens: int, hidden: int, inner: int, dtype: torch.dtype, activation: str, height: int
) -> None:
    inputs = _inputs(tokens, hidden, inner, dtype, activation == "clamped_swiglu", activation != "relu2_alone")
    out = torch.full((tokens, hidden), float("nan"), dtype=dtype)
    run_experts(*inputs, activation, Tiles(height, _config(32), _config(16)), out)
    expected = reference.moe_experts(*inputs, activation)
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
    gate_up, down = (
        ExpertMatrix((torch.randn(held, n, k) / 6).half())
        for n, k in ((20, 40), (40, 10 if activation == "silu" else 20))
    )
    x, out = torch.randn(1, 40).half(), torch.full((1, 40), float("nan")).half()
    ids, shares = torch.full((1, options.slots), -99, dtype=torch.int32), torch.full((1, options.slots), float("nan"))
    choice = MIXTURE.pick(MixtureProblem.of(x, logits, None, options, gate_up, down, activation, 12))
    launch_routed(choice, x, Routing(logits, options, shares), ids, gate_up, down, activation, out, 12, False)
    expected = _routed(moe_route_torch, logits, None, options)
    assert torch.equal(ids, expected[0])
    torch.testing.assert_close(shares, expected[1], atol=1e-6, rtol=1e-5)
    total = torch.empty_like(out)
    moe_experts(x, *expected, gate_up, down, activation, False, total, 12)
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
    run_experts(x, ids, shares, gate_up, down, activation, tiles, out)
    expected = reference.moe_experts(x, ids, shares, gate_up, down, activation)
    assert (out.double() - expected).norm() <= 6e-3 * expected.norm()


def _codes_config(block_n: int, fold: int) -> dict[str, int]:
    return {"BLOCK_N": block_n, "FOLD": fold, "num_warps": 2, "num_stages": 2}


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(
    "kinds", [(("symmetric", "zeros"), 128), (("table", "symmetric"), 32), (("eight", "float8"), 0)]
)
def test_experts_of_every_kind_of_codes(kinds: tuple[tuple[str, str], int], fold: int) -> None:
    _check_codes(kinds[0], 2, (40, 24), kinds[1], Tiles(16, _codes_config(64, fold), _codes_config(64, fold)))


@pytest.mark.parametrize("height", [1, 16])
@pytest.mark.parametrize(("tokens", "hidden", "inner"), [(1, 31, 64), (3, 264, 15)])
def test_experts_of_codes_at_tile_boundaries(tokens: int, hidden: int, inner: int, height: int) -> None:
    tiles = Tiles(height, _codes_config(32, 0), _codes_config(32, 0))
    for activation in ("silu", "relu2_alone"):
        _check_codes(("table", "float8"), tokens, (hidden, inner), 32, tiles, activation)


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
    gate_up = expert_codes("float8", 3, first, hidden, group_size, biased=False)._replace(w8a8=True)
    down = expert_codes("float8", 3, hidden, inner, group_size, biased=False)._replace(w8a8=True)
    x, shares = torch.randn(40, hidden).half(), torch.rand(40, 2)
    config = {"BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    out = torch.full((40, hidden), float("nan")).half()
    run_experts(x, ids, shares, gate_up, down, activation, Tiles(64, config, config), out)
    expected = reference.moe_experts(x, ids, shares, gate_up, down, activation)
    # Rows are rounded to three bits of mantissa.
    assert 1e-3 * expected.norm() < (out.double() - expected).norm() <= 5e-2 * expected.norm()


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    inputs = _inputs(20, 32, 16, torch.float16, biased=False)
    tiles = Tiles(64, _config(32), _config(16))
    results = []
    for tokens in (1, 20):
        some = [each[:tokens] if index < 3 else each for index, each in enumerate(inputs)]
        out = torch.empty(tokens, 32, dtype=torch.float16)
        run_experts(*some, "silu", tiles, out)
        results.append(out[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("height", [1, 16])
@pytest.mark.parametrize("packed", [False, True])
def test_experts_of_other_ranks_add_nothing(packed: bool, height: int) -> None:
    """Ids of five experts, of which this rank has the middle three."""
    inputs = _inputs(7, 32, 16, torch.float16, biased=False)
    inputs[1] -= 1
    config = _codes_config(32, 0) if packed else _config(32)
    both = [expert_codes("float8", 3, *each.weight.shape[1:], 0, biased=False) for each in inputs[3:]]
    inputs[3:] = both if packed else [each._replace(weight=each.weight[1:4].contiguous()) for each in inputs[3:]]
    out = torch.full((7, 32), float("nan"), dtype=torch.float16)
    run_experts(*inputs, "silu", Tiles(height, config, config), out, 3)
    here = (inputs[1] >= 0) & (inputs[1] < 3)
    assert 0 < here.sum() < here.numel()
    expected = reference.moe_experts(inputs[0], inputs[1].where(here, 0), inputs[2].where(here, 0), *inputs[3:], "silu")
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=1e-3)
    order, tiles, num_tiles = moe_align_triton(inputs[1], 3, 16, 3)
    assert sum(end - first for _, first, end in tiles[: int(num_tiles)].tolist()) == here.sum()
    assert here.flatten()[order[: int(here.sum())].long()].all()


def test_no_tokens_and_what_does_not_fit() -> None:
    inputs = _inputs(3, 32, 16, torch.float32, biased=False)
    moe_experts(*_inputs(0, 32, 16, torch.float32, biased=False), "silu", False, torch.empty(0, 32))
    with pytest.raises(ValueError, match="moe_experts: shapes"):
        moe_experts(*inputs, "silu", False, torch.empty(3, 31))
    with pytest.raises(ValueError, match="moe_experts: unknown activation"):
        moe_experts(*inputs, "tanh", False, torch.empty(3, 32))
    weight = inputs[3].weight.transpose(0, 1).contiguous().transpose(0, 1)
    inputs[3] = inputs[3]._replace(weight=weight)
    with pytest.raises(ValueError, match="contiguous"):
        moe_experts(*inputs, "silu", False, torch.empty(3, 32))

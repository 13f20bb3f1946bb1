"""The kernels of mixtures of experts as they serve: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support.expert_codes import E2M1, nvfp4_scales
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix, ExpertMlps, RouteOptions, Routing
from text_generation_kernels.moe._experts_torch import moe_experts_torch
from text_generation_kernels.moe.expert_load import expert_load_torch
from text_generation_kernels.moe.moe_experts import Tiles, run_experts, tiles_of

pytestmark = pytest.mark.gpu
SHAPES = [(128, 8, 2048, 768), (8, 2, 1024, 3584), (32, 4, 2880, 1440), (16, 2, 80, 40)]
ALONE = (64, 6, 2688, 1856)
"""Experts, experts of a token, hidden and inner sizes. These have no gate."""


Inputs = tuple[Tensor, Routing, ExpertMlps]


def _inputs(tokens: int, shape: tuple[int, ...], dtype: torch.dtype, biased: bool = False) -> Inputs:
    experts, top_k, hidden, inner = shape
    torch.manual_seed(tokens)
    options = {"device": "cuda", "dtype": dtype}
    logits = torch.randn(tokens, experts, device="cuda")
    routing = Routing.empty(tokens, top_k, "cuda")
    kernels.moe_route(logits, None, RouteOptions(top_k), routing)
    first_outputs = inner if shape == ALONE else 2 * inner
    gate_up = torch.randn(experts, first_outputs, hidden, **options) / hidden**0.5  # type: ignore[arg-type]
    down = torch.randn(experts, hidden, inner, **options) / inner**0.5  # type: ignore[arg-type]
    biases = (torch.randn(experts, 2 * inner, **options), torch.randn(experts, hidden, **options)) if biased else None  # type: ignore[arg-type]
    first, second = biases or (None, None)
    activation = "clamped_swiglu" if biased else "relu2_alone" if shape == ALONE else "silu"
    mlps = ExpertMlps(ExpertMatrix(gate_up, first), ExpertMatrix(down, second), activation)
    return torch.randn(tokens, hidden, **options), routing, mlps  # type: ignore[arg-type]


def _torch(inputs: Inputs) -> Tensor:
    """What torch makes of the same."""
    out = torch.empty_like(inputs[0])
    moe_experts_torch(*inputs, False, out)
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 2, 8, 65, 700])
@pytest.mark.parametrize("shape", [*SHAPES, ALONE], ids=str)
def test_close_to_torch(shape: tuple[int, ...], tokens: int, dtype: torch.dtype) -> None:
    inputs = _inputs(tokens, shape, dtype, biased=shape[0] == 32)
    out, expected = torch.full_like(inputs[0], float("nan")), _torch(inputs)
    for deterministic in (False, True):
        kernels.moe_experts(*inputs, deterministic, out)
        limit = 1e-4 if dtype == torch.float32 else 1e-2
        assert (out.float() - expected.float()).norm() <= limit * expected.float().norm()


ONES = [(128, 8, 2048, 768), (60, 4, 2048, 1408), (40, 8, 1536, 512), (8, 2, 4096, 1792), (64, 8, 1024, 320)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [0, 1])
@pytest.mark.parametrize("shape", [*ONES, ALONE], ids=str)
def test_fused_routing_of_one_token_is_the_routers(shape: tuple[int, ...], norm: int, dtype: torch.dtype) -> None:
    x, routing, mlps = _inputs(1, shape, dtype)
    options = RouteOptions(shape[1], norm=norm, scale=0.5, shared_gate=shape[0] == 60)
    logits = torch.zeros(1, shape[0] + options.shared_gate, device="cuda", dtype=dtype)
    out = torch.zeros_like(x)
    # Twice in a row: thread blocks of one launch are not to count those of another.
    kernels.mixture(x, logits, None, options, mlps, False, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            kernels.mixture(x, logits, None, options, mlps, False, out, True)
    for values in (torch.randn(logits.shape), torch.randn(logits.shape).round(), torch.zeros(logits.shape)):
        logits.copy_(values)
        kernels.moe_route(logits, None, options, routing)
        expected = _torch((x, routing, mlps)).float()
        for _ in range(3):
            out.zero_()
            graph.replay()
            assert (out.float() - 2 * expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.parametrize("tokens", [1, 33, 2500])
def test_rows_of_each_rank_are_counted_in_a_graph(tokens: int) -> None:
    """Into a row of a table, which need not be aligned. Of other ids the same graph counts anew."""
    starts = torch.tensor([0, 42, 85, 128], dtype=torch.int32, device="cuda")
    ids = torch.zeros(tokens, 8, dtype=torch.int32, device="cuda")
    slots = torch.arange(tokens, device="cuda")
    slots[1::3] = 1 << 20
    table = torch.zeros(2, 3, dtype=torch.int32, device="cuda")
    kernels.expert_load(ids, slots, 1 << 20, starts, table[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.expert_load(ids, slots, 1 << 20, starts, table[1])
    for _ in range(2):
        ids.copy_(torch.rand(tokens, 128).argsort(dim=1)[:, :8])
        expected = torch.zeros(3, dtype=torch.int32)
        expert_load_torch(ids.cpu(), slots.cpu(), 1 << 20, starts.cpu(), expected)
        graph.replay()
        assert table.tolist() == [[0, 0, 0], expected.tolist()]


@pytest.mark.parametrize("height", [1, 16, 64, 128])
def test_every_tile_gives_the_same(height: int) -> None:
    inputs = _inputs(40, SHAPES[0], torch.bfloat16)
    out, expected = torch.empty_like(inputs[0]), _torch(inputs)
    tiles: Tiles = tiles_of(height, inputs[2])
    run_experts(*inputs, tiles, out)
    assert (out.float() - expected.float()).norm() <= 1e-2 * expected.float().norm()


def test_a_token_has_the_same_bits_alone_and_among_others_in_deterministic_mode() -> None:
    x, routing, mlps = _inputs(600, SHAPES[0], torch.bfloat16)
    results = []
    for tokens in (1, 3, 64, 600):
        some = Routing(routing.ids[:tokens], routing.weights[:tokens])
        out = torch.empty_like(x[:tokens])
        kernels.moe_experts(x[:tokens], some, mlps, True, out)
        results.append(out[0])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("tokens", [1, 8, 65, 700])
@pytest.mark.parametrize("kind", ["dense", "int4", "mxfp4", "nvfp4", "float8 rows"])
def test_ranks_with_experts_of_their_own_in_a_graph(kind: str, tokens: int) -> None:
    """Three ranks of different numbers of experts, one after the other."""
    x, routing, mlps = _inputs(tokens, SHAPES[2], torch.bfloat16, biased=True)
    experts, top_k, hidden, inner = SHAPES[2]
    logits, matrices = torch.randn(tokens, experts, device="cuda"), (mlps.gate_up, mlps.down)
    for own in (slice(0, 10), slice(10, 21), slice(21, 32)):
        options, out = RouteOptions(top_k, first=own.start), torch.empty_like(x)
        if kind == "dense":
            some = [ExpertMatrix(each.weight[own], None if each.bias is None else each.bias[own]) for each in matrices]
        else:
            torch.manual_seed(own.start)
            count = own.stop - own.start
            some = [_codes(kind, count, 2 * inner, hidden), _codes(kind, count, hidden, inner)]
        mlps = ExpertMlps(*some, "clamped_swiglu", experts)

        def run(options: RouteOptions = options, mlps: ExpertMlps = mlps, out: Tensor = out) -> None:
            kernels.moe_route(logits, None, options, routing)
            kernels.moe_experts(x, routing, mlps, False, out)

        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        logits.normal_()
        graph.replay()
        expected = _torch((x, routing, mlps))
        limit = 6e-2 if kind == "float8 rows" else 1.5e-2
        assert (out.float() - expected.float()).norm() <= limit * expected.float().norm()


def test_a_graph_replays_other_routings() -> None:
    inputs = _inputs(30, SHAPES[0], torch.bfloat16)
    logits = torch.empty(30, 128, device="cuda")
    out = torch.empty_like(inputs[0])

    def run() -> None:
        kernels.moe_route(logits, None, RouteOptions(8), inputs[1])
        kernels.moe_experts(*inputs, False, out)

    logits.normal_()
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for spread in (1.0, 0.0, 30.0):
        logits.normal_().mul_(spread)
        graph.replay()
        expected = _torch(inputs)
        assert (out.float() - expected.float()).norm() <= 1e-2 * expected.float().norm()


KINDS = {
    "int4": (4, 128),
    "table": (4, 32),
    "mxfp4": (4, 32),
    "nvfp4": (4, 16),
    "int4 of 16": (4, 16),
    "zeros": (4, 64),
    "zeros of 16": (4, 16),
    "int8": (8, 0),
    "float8": (8, 128),
    "float8 rows": (8, 128),
}
"""Bits, and inputs that share a scale. "float8 rows": rows may be rounded to 8 bits too."""


def _codes(kind: str, experts: int, outputs: int, inputs: int) -> ExpertMatrix:
    (bits, group), rows = KINDS[kind], experts * outputs
    groups = -(-inputs // (group or inputs))
    codes = torch.randint(2**bits, (rows, inputs), dtype=torch.uint8, device="cuda")
    values = torch.rand(rows, groups, device="cuda") + 0.5
    layout = inputs, group
    values = values.bfloat16() / (4 if bits == 4 else 64) / inputs**0.5
    scales, size = kernels.pack_scales(values, *layout)
    zeros, factors = None, None
    if kind.startswith("zeros"):
        zeros = torch.randint(16, (rows, groups), device="cuda")
        zeros = kernels.pack_scales(zeros, *layout)[0]
    if kind == "nvfp4":
        scales, factors = nvfp4_scales(rows, inputs, "cuda")
    packed = kernels.pack_codes(codes, bits)
    if kind.startswith("float8"):
        packed = (8 * torch.randn(rows, inputs, device="cuda")).to(torch.float8_e4m3fn)
    table = torch.randn(16, device="cuda").mul_(4) if kind == "table" else None
    if is_float4 := kind in ("mxfp4", "nvfp4"):
        table = torch.tensor([*E2M1, *(-each for each in E2M1)], device="cuda")
    bias = torch.randn(experts, outputs, device="cuda").bfloat16() if kind == "table" else None
    kinds = kind == "float8 rows", is_float4, factors
    return ExpertMatrix(packed.view(experts, outputs, -1), bias, scales, zeros, table, size, *kinds)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 8, 65, 700])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_close_to_torch(kind: str, shape: tuple[int, ...], tokens: int, dtype: torch.dtype) -> None:
    experts, _, hidden, inner = shape
    inputs = _inputs(tokens, shape, dtype)
    matrices = _codes(kind, experts, 2 * inner, hidden), _codes(kind, experts, hidden, inner)
    inputs = (*inputs[:2], ExpertMlps(*matrices, "silu"))
    expected = _torch(inputs)
    for deterministic in (False, True):
        out = torch.full_like(inputs[0], float("nan"))
        kernels.moe_experts(*inputs, deterministic, out)
        limit = 6e-2 if kind == "float8 rows" else 1.5e-2
        assert (out.float() - expected.float()).norm() <= limit * expected.float().norm()

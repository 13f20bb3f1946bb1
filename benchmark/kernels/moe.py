"""Mixture of experts: each kernel and the whole layer, beside the reading of weights and torch's grouped GEMM.

    python -m benchmark.kernels.moe [--dry-run] [--candidates] [--models NAME ...] [--kinds KIND ...] [--tokens N ...]

Results are checked against torch first. The floor is the larger of the time to read the weights of the experts that are
hit, as fast as a copy in the same run, and that of their arithmetic, as fast as a large 16-bit GEMM in
the same run. Kinds are how weights are stored: `dense` (16 bits), `fp8` (a scale for each 128 x 128 block), `int4`
(groups of 128), `mxfp4`, `nvfp4`.
Experts are chosen at random and differ between the calls of a graph, so no weight is in the cache.
`--candidates` times up and down with other tiles instead, the best first; the first two of each size that are worth
it belong into `kernels/text_generation_kernels/tuned/grouped_gemm.json` or `weight_only_grouped_gemm.json`, and
`moe_align.json`.
"""

import argparse
import dataclasses
import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels
from text_generation_kernels import ExpertMatrix, ExpertMlps, Routing
from text_generation_kernels.matmul.ladder import SMALL_BATCH
from text_generation_kernels.moe._experts_torch import moe_experts_torch
from text_generation_kernels.moe.expert_rows import ExpertRows
from text_generation_kernels.moe.experts_ladder import tile_height
from text_generation_kernels.moe.moe_align import moe_align_triton
from text_generation_kernels.moe.moe_experts import expert_gemm, tiles_of
from text_generation_kernels.norm.activations import is_gated

from .report import of_plan, print_rows
from .timing import DRY_PLAN, GPU_PLAN, Call, Plan, Row, copy_bandwidth, gemm_rate, seconds_per_call


@dataclasses.dataclass(frozen=True)
class Shape:
    """The mixture of one model."""

    experts: int
    top_k: int
    hidden: int
    inner: int
    activation: str = "silu"
    biased: bool = False

    @property
    def matrices(self) -> int:
        """Of an expert."""
        return 3 if is_gated(self.activation) else 2


MODELS = {
    "qwen3-30b-a3b": Shape(128, 8, 2048, 768),
    "mixtral-8x7b": Shape(8, 2, 4096, 14336),
    "mixtral-8x7b-half": Shape(8, 2, 4096, 7168),  # of one of two ranks
    "gpt-oss-120b": Shape(128, 4, 2880, 2880, "clamped_swiglu", True),
    "nemotron-3-super": Shape(512, 22, 1024, 2688, "relu2_alone"),  # of a latent state
}
DRY_MODELS = {"dry": Shape(6, 2, 32, 48, "clamped_swiglu", True)}
TOKENS = (1, 8, 64, 512, 4096)
LAYERS = 2
"""Sets of weights that alternate."""
TOLERANCE = 2e-2
"""Of the norm of the difference from torch, relative to the norm."""
CANDIDATES = {
    16: [(32, 256, 4, 4), (64, 128, 4, 3), (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 4, 3)],
    32: [(64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 4, 3)],
    64: [(64, 128, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4), (128, 128, 8, 3), (256, 64, 8, 3)],
    128: [(128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 3), (256, 64, 8, 3), (256, 64, 8, 4)],
}
"""By rows of a tile: BLOCK_N, BLOCK_K, num_warps, num_stages."""
CANDIDATES_OF_CODES = {
    1: [(32, 0, 2, 3), (32, 1, 2, 4), (64, 0, 2, 3), (64, 1, 2, 3), (64, 0, 4, 3), (64, 1, 4, 3)],
    8: [(32, 0, 2, 3), (64, 0, 2, 3), (64, 1, 2, 3), (64, 1, 4, 3), (128, 1, 4, 3)],
    16: [(32, 0, 2, 3), (64, 0, 2, 3), (64, 1, 2, 3), (64, 0, 4, 3), (64, 1, 4, 3), (128, 1, 4, 3)],
    32: [(64, 0, 4, 3), (64, 1, 2, 3), (64, 1, 4, 3), (128, 1, 4, 3)],
    64: [(64, 1, 4, 2), (64, 1, 4, 3), (128, 1, 4, 2), (128, 1, 4, 3), (128, 1, 8, 2), (128, 1, 8, 3)],
    128: [(64, 1, 4, 2), (128, 1, 8, 2), (128, 1, 8, 3)],
}
"""Likewise (1: not sorted): BLOCK_N, FOLD, num_warps, num_stages."""
KINDS = {"dense": 0, "fp8": 128, "int4": 128, "mxfp4": 32, "nvfp4": 16}
"""Inputs that share a scale."""
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Mixture:
    """Weights, hidden states and routings of one model for one number of tokens."""

    def __init__(self, plan: Plan, shape: Shape, weights: list["Weights"], tokens: int) -> None:
        self.plan, self.shape, self.tokens, self.weights = plan, shape, tokens, weights
        self.x = plan.normal(tokens, shape.hidden)
        self.options = kernels.RouteOptions(shape.top_k)
        draws = plan.buffers(int(min(tokens * shape.top_k, shape.experts) * weights[0].expert_bytes))
        self.logits = plan.normal(draws, tokens, shape.experts)
        self.routings = [Routing.empty(tokens, shape.top_k, plan.device) for _ in range(draws)]
        for draw in range(draws):
            self.route(draw)
        self.out = torch.empty_like(self.x)

    def experts(self, draw: int) -> None:
        """What is called once a layer."""
        kernels.moe_experts(self.x, self.routings[draw], self.weights[draw % LAYERS].mlps, False, self.out)

    def layer(self, draw: int) -> None:
        """Router, top-k and experts."""
        router = self.weights[draw % LAYERS].router
        if self.tokens <= SMALL_BATCH and not self.plan.dry_run:
            kernels.linear(self.x, router, None, self.logits[-1])
        else:
            torch.mm(self.x, router.t(), out=self.logits[-1])
        kernels.moe_route(self.logits[-1], None, self.options, self.routings[-1])
        # The routings made before are used, so that experts differ as they do in other layers.
        self.experts(draw)

    def mixture(self, draw: int) -> None:
        """Top-k and experts as a layer calls them, which for one token may be one kernel."""
        mlps = self.weights[draw % LAYERS].mlps
        kernels.mixture(self.x, self.logits[draw], None, self.options, mlps, False, self.out)

    def route(self, draw: int) -> None:
        """The top-k alone."""
        kernels.moe_route(self.logits[draw], None, self.options, self.routings[draw])

    def check(self) -> float:
        """Difference from torch. Raises RuntimeError where it is too large."""
        self.experts(0)
        expected = torch.empty_like(self.out)
        moe_experts_torch(self.x, self.routings[0], self.weights[0].mlps, False, expected)
        error = ((self.out.float() - expected.float()).norm() / expected.float().norm()).item()
        if not error <= TOLERANCE:
            raise RuntimeError(f"{self.tokens} tokens: the difference from torch is {error:.2e} of the norm")
        return error


class Weights:
    """One layer's."""

    def __init__(self, plan: Plan, shape: Shape, kind: str, all_experts: int | None = None) -> None:
        self.router = normal(plan, shape.experts, shape.hidden)
        first = (shape.matrices - 1) * shape.inner
        gate_up = matrix(plan, kind, shape.experts, first, shape.hidden, shape.biased)
        down = matrix(plan, kind, shape.experts, shape.hidden, shape.inner, shape.biased)
        self.mlps = ExpertMlps(gate_up, down, shape.activation, all_experts)
        self.expert_bytes = (gate_up.nbytes + down.nbytes) / shape.experts


def normal(plan: Plan, *sizes: int) -> Tensor:
    """Random numbers of the size that weights have."""
    return plan.normal(*sizes, std=0.02)


def matrix(plan: Plan, kind: str, experts: int, outputs: int, inputs: int, biased: bool) -> ExpertMatrix:
    """Random weights of all experts."""
    bias = normal(plan, experts, outputs) if biased else None
    if kind == "dense":
        return ExpertMatrix(normal(plan, experts, outputs, inputs), bias)
    rows, group = experts * outputs, KINDS[kind]
    values = torch.randint(1, 3, (rows, -(-inputs // group)), device=plan.device).float() / 256
    scales, size = kernels.pack_scales(values, inputs, group)
    if kind == "fp8":
        codes = normal(plan, experts, outputs, inputs).mul_(128).to(torch.float8_e4m3fn)
        return ExpertMatrix(codes, bias, scales, None, None, size)
    words = torch.randint(-(2**31), 2**31 - 1, (experts, outputs, -(-inputs // 256) * 32), device=plan.device)
    if kind == "int4":
        return ExpertMatrix(words.int(), bias, scales, None, None, size)
    table = torch.tensor([*_FP4, *(-each for each in _FP4)], device=plan.device)
    if kind == "mxfp4":
        return ExpertMatrix(words.int(), bias, scales, None, table, size, e2m1=True)
    factors = torch.full((rows,), 1 / 128, device=plan.device)
    scales = (scales.float() * 128).to(torch.float8_e4m3fn)
    return ExpertMatrix(words.int(), bias, scales, None, table, size, e2m1=True, factors=factors)


def expert_gemms(
    mixture: Mixture, height: int, up: dict[str, int] | None, down: dict[str, int] | None
) -> dict[str, Call]:
    """Alignment, up and down as calls of their own, with tiles of `height` rows."""
    m, weights = mixture, mixture.weights
    chosen = tiles_of(height, weights[0].mlps)
    experts, slots = m.shape.experts, m.shape.top_k
    activated = m.x.new_empty(m.tokens * slots, m.shape.inner).normal_()
    rows = m.x.new_empty(m.tokens * slots, m.shape.hidden)

    def align(draw: int) -> tuple[Tensor, Tensor, Tensor] | None:
        return None if height == 1 else moe_align_triton(m.routings[draw].ids, experts, height)

    alignments = [align(draw) for draw in range(len(m.routings))]

    def first(draw: int) -> None:
        sorting = ExpertRows(m.routings[draw].ids, alignments[draw], None, m.shape.activation, height)
        expert_gemm(m.x, weights[draw % LAYERS].mlps.gate_up, sorting, activated, up or chosen.up)

    def second(draw: int) -> None:
        matrix, routing = weights[draw % LAYERS].mlps.down, m.routings[draw]
        sorting = ExpertRows(routing.ids, alignments[draw], routing.weights, None, height)
        sums = height == 1 and not matrix.is_packed
        expert_gemm(activated, matrix, sorting, m.out if sums else rows, down or chosen.down)

    return {"align": align, "up": first, "down": second}


def library(mixture: Mixture) -> Call:
    """Up and down as torch has them, of rows that are sorted already, without activation, bias and weights."""
    m, slots, experts = mixture, mixture.shape.top_k, mixture.shape.experts
    chosen = [routing.ids.flatten() for routing in m.routings]
    orders = [ids.argsort() for ids in chosen]
    ends = [torch.bincount(ids, minlength=experts).cumsum(0).int() for ids in chosen]
    sorted_x = [m.x[order // slots] for order in orders[:LAYERS]]
    activated = m.x.new_empty(m.tokens * slots, m.shape.inner).normal_()

    def call(draw: int) -> None:
        mlps = m.weights[draw % LAYERS].mlps
        functional.grouped_mm(sorted_x[draw % LAYERS], mlps.gate_up.weight.transpose(1, 2), offs=ends[draw])
        functional.grouped_mm(activated, mlps.down.weight.transpose(1, 2), offs=ends[draw])

    return call


def floor_seconds(mixture: Mixture, bandwidth: float, flops: float, part: float = 1.0) -> float:
    """The least time that `part` of the GEMMs can take."""
    hit = sum(routing.ids.unique().numel() for routing in mixture.routings) / len(mixture.routings)
    expert_bytes, shape = mixture.weights[0].expert_bytes, mixture.shape
    arithmetic = 2 * mixture.tokens * shape.top_k * shape.matrices * shape.hidden * shape.inner
    return part * max(hit * expert_bytes / bandwidth, arithmetic / flops)


def measure(mixture: Mixture, bandwidth: float, flops: float) -> Row:
    """One line: every kernel of one size."""
    m, draws, on_gpu = mixture, len(mixture.routings), not mixture.plan.dry_run
    sizes = m.tokens, m.shape.top_k, m.shape.experts, m.weights[0].mlps.down.bits
    height = tile_height(*sizes, deterministic=False)
    calls: dict[str, Call] = {"route": m.route, "experts": m.experts, "mixture": m.mixture, "layer": m.layer}
    if not m.weights[0].mlps.gate_up.is_packed:
        calls["library"] = library(m)
    if on_gpu:
        calls |= expert_gemms(m, height, None, None)
        if height == 1:
            del calls["align"]
    times = {name: seconds_per_call(m.plan, call, draws) * 1e6 for name, call in calls.items()}
    floor = floor_seconds(m, bandwidth, flops) * 1e6
    row: Row = {"tokens": m.tokens, "height": height, "floor_microseconds": round(floor, 1)}
    row |= {f"{name}_microseconds": round(time, 1) for name, time in times.items()}
    if on_gpu:
        row["products_fraction_of_floor"] = round(floor / (times["up"] + times["down"]), 3)
    compared = [name for name in ("experts", "mixture", "layer", "library") if name in times]
    fractions = {f"{name}_fraction_of_floor": round(floor / times[name], 3) for name in compared}
    return row | fractions | {"difference": m.check()}


def heights(mixture: Mixture) -> list[int]:
    """Tiles worth trying."""
    rows = mixture.tokens * mixture.shape.top_k / mixture.shape.experts
    limits = {1: (0, 0.25), 8: (0, 6), 16: (0, 32), 32: (2, 64), 64: (8, 1e9), 128: (64, 1e9)}
    found = [each for each, (low, high) in limits.items() if low <= rows <= high or (each == 1 and mixture.tokens == 1)]
    # 16-bit weights are the right operand, so rows the left one, of which a matrix instruction takes 16; GEMVs of
    # rows that are not sorted have no tiles.
    return found if mixture.weights[0].mlps.gate_up.is_packed else [each for each in found if each >= 16]


def configs(mixture: Mixture, height: int) -> list[dict[str, int]]:
    """Launch settings worth trying."""
    packed = mixture.weights[0].mlps.gate_up.is_packed
    names = ("BLOCK_N", "FOLD" if packed else "BLOCK_K", "num_warps", "num_stages")
    variants = (CANDIDATES_OF_CODES if packed else CANDIDATES)[height]
    return [dict(zip(names, variant, strict=True)) for variant in variants]


def candidates(mixture: Mixture, bandwidth: float, flops: float) -> Iterator[Row]:
    """Up and down with each candidate, the best first."""
    down = 1 / mixture.shape.matrices
    for part, share in (("up", 1 - down), ("down", down)):
        floor = floor_seconds(mixture, bandwidth, flops, share) * 1e6
        rows: list[Row] = []
        for height, variants in ((height, configs(mixture, height)) for height in heights(mixture)):
            for config in variants:
                time = seconds_per_call(
                    mixture.plan, expert_gemms(mixture, height, config, config)[part], len(mixture.routings)
                )
                fraction = round(floor / (time * 1e6), 3)
                rows.append({"tokens": mixture.tokens, "product": part, "height": height, **config})
                rows[-1] |= {"microseconds": round(time * 1e6, 1), "fraction_of_floor": fraction}
        yield from sorted(rows, key=lambda row: row["microseconds"])


def rows_of(
    plan: Plan, shape: Shape, kind: str, sizes: Sequence[int], with_candidates: bool, bandwidth: float, flops: float
) -> Iterator[Row]:
    """All sizes of one model."""
    weights = [Weights(plan, shape, kind) for _ in range(LAYERS)]
    if not plan.dry_run:
        compile_all(plan, shape, weights, sizes, with_candidates)
    for tokens in sizes:
        mixture = Mixture(plan, shape, weights, tokens)
        if with_candidates:
            yield from candidates(mixture, bandwidth, flops)
        else:
            yield measure(mixture, bandwidth, flops)


def compile_all(plan: Plan, shape: Shape, weights: list[Weights], sizes: Sequence[int], with_candidates: bool) -> None:
    """Compiles what is going to be timed, side by side."""
    mixtures = [Mixture(plan, shape, weights, tokens) for tokens in sizes]
    with kernels.compile_only(len(os.sched_getaffinity(0))):
        for mixture in mixtures:
            mixture.layer(0)
            mixture.mixture(0)
            for height in heights(mixture) if with_candidates else ():
                for config in configs(mixture, height):
                    calls = expert_gemms(mixture, height, config, config)
                    calls["up"](0)
                    calls["down"](0)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on CPU, no Triton")
    parser.add_argument("--candidates", action="store_true", help="time other tiles instead; needs a GPU")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    arguments = parser.parse_args()
    plan = DRY_PLAN if arguments.dry_run else dataclasses.replace(GPU_PLAN, calls=8, replays=9)
    if not torch.cuda.is_available() and (not plan.dry_run or arguments.candidates):
        parser.error("no CUDA device: use --dry-run, without --candidates")
    sizes = (1, 5) if plan.dry_run else arguments.tokens
    models = DRY_MODELS if plan.dry_run else {name: MODELS[name] for name in arguments.models}
    bandwidth, flops = copy_bandwidth(plan, plan.ceiling_bytes), gemm_rate(plan)
    rows = [
        {"model": name, "kind": kind, **row}
        for name, shape in models.items()
        for kind in arguments.kinds
        for row in rows_of(plan, shape, kind, sizes, arguments.candidates, bandwidth, flops)
    ]
    machine = {"copy_gigabytes_per_second": bandwidth / 1e9, "product_teraflops": flops / 1e12}
    print_rows(rows, benchmark="moe", **of_plan(plan), **machine)


if __name__ == "__main__":
    main()

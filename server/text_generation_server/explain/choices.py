"""Which kernel computes a matrix at a number of tokens, and why not those before it in its ladder."""

from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeVar

import torch

import text_generation_kernels as kernels
from text_generation_kernels.matmul.bf16_ladder import BF16, CUBLAS, Bf16Problem
from text_generation_kernels.matmul.ladder import Ladder
from text_generation_kernels.matmul.w8a8_ladder import W8A8, W8A8Problem
from text_generation_kernels.matmul.weight_only_ladder import WEIGHT_ONLY, WeightOnlyProblem
from text_generation_kernels.moe.experts_ladder import EXPERTS, ExpertProblem, tile_height
from text_generation_kernels.moe.mixture_ladder import MIXTURE, MixtureProblem

from ..layers.infer import expert_mlps, route_options
from ..layers.weights import Dense, W8A8Linear
from .matrices import Experts, Matrix

ProblemT = TypeVar("ProblemT", bound=Hashable)


class Chosen(NamedTuple):
    """A kernel, and why not the others."""

    kernel: str
    refusals: tuple[str, ...]


def chosen(part: Matrix | Experts, tokens: int, partials: bool, dtype: torch.dtype) -> Iterator[Chosen]:
    """Yields the kernel of each GEMM. With `partials` the next kernel reduces split-K partials, if there are any."""
    if isinstance(part, Experts):
        yield from _of_experts(part, tokens, dtype)
    else:
        yield _of_matrix(part, tokens, partials, dtype)


def _of_matrix(matrix: Matrix, tokens: int, partials: bool, dtype: torch.dtype) -> Chosen:
    linear = matrix.linear
    if isinstance(linear, Dense):
        weight = linear.weight
        x, out = (weight.new_empty(tokens, size) for size in (weight.shape[1], weight.shape[0]))
        # A rank that adds a bias has no partials to leave.
        partials = partials and (linear.bias is None or matrix.name.endswith("qkv"))
        activation = "silu" if matrix.gated else None
        return _pick(BF16, Bf16Problem.of(x, weight, out, activation, partials), partials)
    if isinstance(linear, W8A8Linear):
        return _of_w8a8(linear, tokens, matrix.gated, partials and not matrix.name.endswith("qkv"))
    x = torch.empty(tokens, linear.inputs, dtype=dtype, device="meta")
    out = x.new_empty(tokens, linear.outputs)
    picked = _pick(WEIGHT_ONLY, WeightOnlyProblem.of(x, linear.weight, out))
    copied = f"; {CUBLAS.name} where its 16-bit copy is kept (--dequantised-copies)"
    return picked if tokens <= kernels.SMALL_BATCH else picked._replace(kernel=picked.kernel + copied)


def _of_w8a8(linear: W8A8Linear, tokens: int, gated: bool, partials: bool) -> Chosen:
    x = torch.empty(tokens, linear.weight.shape[1], dtype=torch.bfloat16, device="meta")
    # A single token is quantised by its GEMV, unless scales are by block.
    codes, scale, room = x, None, linear.wants.room(x)
    if room.codes is not None and (tokens > 1 or linear.wants.group):
        codes, scale = room.codes, room.scale
    operands = codes, scale, linear.weight, linear.scale
    is_small = 1 < tokens <= kernels.SMALL_BATCH
    if is_small and (gated or (partials and linear.bias is None)):
        problem = W8A8Problem.of(*operands, gated=gated, partials=partials)
        # Where no kernel fuses them, the GEMM and what follows are two.
        if W8A8.find(problem) is not None:
            return _pick(W8A8, problem, partials)
    return _pick(W8A8, W8A8Problem.of(*operands))


def _of_experts(experts: Experts, tokens: int, dtype: torch.dtype) -> Iterator[Chosen]:
    spec, weights = experts.spec, experts.weights
    options, mlps = route_options(spec, weights), expert_mlps(spec, weights)
    x = torch.empty(tokens, mlps.hidden, dtype=dtype, device="meta")
    refusals: tuple[str, ...] = ()
    if tokens == 1:
        logits = x.new_empty(1, weights.router.outputs, dtype=torch.float32 if spec.route.wide else dtype)
        problem = MixtureProblem.of(x, logits, weights.correction, options, mlps)
        refusals = _refusals(MIXTURE, problem)
        if (choice := MIXTURE.find(problem)) is not None:
            yield Chosen(choice.kernel.name, refusals)
            return
    height = tile_height(tokens, options.slots, mlps.total, mlps.down.bits, deterministic=False)
    gemms = ("up", mlps.gate_up, mlps.hidden, False), ("down", mlps.down, mlps.inner, True)
    for name, matrix, inputs, is_down in gemms:
        problem = ExpertProblem.of(matrix, inputs, height, is_down)
        kernel = EXPERTS.pick(problem).kernel.name
        rows = "a tile for each row" if height == 1 else f"tiles of {height} rows"
        yield Chosen(f"{name}: {kernel}, {rows}", (*refusals, *_refusals(EXPERTS, problem)))
        refusals = ()


def _pick(ladder: Ladder[ProblemT], problem: ProblemT, partials: bool = False) -> Chosen:
    choice = ladder.pick(problem)
    splits = choice.settings.get("splits", 1)
    reduced = " that the next kernel reduces" if partials else ""
    return Chosen(
        f"{choice.kernel.name}{f', {splits} splits{reduced}' if splits > 1 else ''}", _refusals(ladder, problem)
    )


def _refusals(ladder: Ladder[ProblemT], problem: ProblemT) -> tuple[str, ...]:
    return tuple(f"{name}: {reason}" for name, reason in ladder.refusals(problem))

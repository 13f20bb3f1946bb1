"""Bar of `w8a8_linear`: bandwidth and rate, beside the 16-bit GEMM and torch's own W8A8 GEMM in the same run.

Matrices of Llama 3.1 8B and 70B on one GPU. Matrices rotate, so none is in the cache up to 64 tokens.
"""

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .bar import Bar
from .matmul import LLAMA_8B, LLAMA_70B, Shapes, gemm_of
from .timing import Plan, Row, seconds_per_call

SHAPES: Shapes = {
    **{f"8b {name}": shape for name, shape in LLAMA_8B.items()},
    **{f"70b {name}": shape for name, shape in LLAMA_70B.items()},
}
TOKENS = (1, 16, 64, 128, 512, 2048)
DRY_SHAPES: Shapes = {"dry": (256, 256)}
BLOCK = 128


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each matrix and number of tokens."""
    for name, (outputs, inputs) in (DRY_SHAPES if plan.dry_run else SHAPES).items():
        count = min(64, max(2, -(-plan.rotation_bytes // (outputs * inputs))))
        wide = plan.normal(max(2, count // 2), outputs, inputs, std=0.02)
        float8 = [wide[0].to(torch.float8_e4m3fn).clone() for _ in range(count)]
        int8 = [each.view(torch.int8) for each in float8]
        for tokens in (1, 3) if plan.dry_run else TOKENS:
            row = {"matrix": name, "outputs": outputs, "inputs": inputs, "tokens": tokens}
            for kind, weights, block in (("fp8", float8, 0), ("int8", int8, 0), ("fp8_blocks", float8, BLOCK)):
                row[f"{kind}_microseconds"] = _ours(plan, weights, tokens, block) * 1e6
            row["bf16_microseconds"] = _wide(plan, wide, tokens) * 1e6
            if not plan.dry_run:
                row["library_tensor_microseconds"] = _library(plan, float8, tokens, by_row=False) * 1e6
                row["library_rows_microseconds"] = _library(plan, float8, tokens, by_row=True) * 1e6
            seconds = row["fp8_microseconds"] / 1e6
            if tokens <= kernels.SMALL_BATCH:
                row["fp8_fraction_of_copy"] = outputs * inputs / seconds / ceiling
            else:
                row["fp8_tera_operations_per_second"] = 2 * tokens * outputs * inputs / seconds / 1e12
            yield row


def _seconds(
    plan: Plan, tokens: int, weights: list[Tensor] | Tensor, gemm: Callable[[Tensor, Tensor], object]
) -> float:
    out = torch.empty(tokens, weights[0].shape[0], dtype=plan.dtype, device=plan.device)
    count = len(weights) if tokens <= kernels.SMALL_BATCH else 2
    plan = dataclasses.replace(plan, calls=min(plan.calls, 24 if tokens <= kernels.SMALL_BATCH else 4), replays=5)
    return seconds_per_call(plan, lambda index: gemm(weights[index], out), count)


def _values(plan: Plan, tokens: int, like: Tensor) -> Tensor:
    values = torch.empty(tokens, like.shape[1], device=plan.device).normal_()
    return values.to(torch.float8_e4m3fn).view(like.dtype)


def _ours(plan: Plan, weights: list[Tensor], tokens: int, block: int) -> float:
    outputs, inputs = weights[0].shape
    x8 = _values(plan, tokens, weights[0])
    scales = ((tokens, inputs // block), (outputs // block, inputs // block)) if block else ((tokens,), (outputs,))
    x_scale, weight_scale = (torch.rand(*shape, device=plan.device) for shape in scales)
    return _seconds(
        plan, tokens, weights, lambda weight, out: kernels.w8a8_linear(x8, x_scale, weight, weight_scale, None, out)
    )


def _wide(plan: Plan, weights: Tensor, tokens: int) -> float:
    x, gemm = plan.normal(tokens, weights.shape[2]), gemm_of(tokens)
    return _seconds(plan, tokens, weights, lambda weight, out: gemm(x, weight, out))


def _library(plan: Plan, weights: list[Tensor], tokens: int, by_row: bool) -> float:
    x8 = _values(plan, tokens, weights[0])
    shapes = ((tokens, 1), (1, len(weights[0]))) if by_row else ((), ())
    a, b = (torch.ones(shape, device=plan.device) for shape in shapes)
    return _seconds(
        plan,
        tokens,
        weights,
        lambda weight, out: torch._scaled_mm(
            x8, weight.t(), scale_a=a, scale_b=b, out_dtype=plan.dtype, use_fast_accum=True, out=out
        ),
    )


BARS = {"w8a8_linear": Bar("8-bit GEMMs, beside 16 bits and torch's", rows)}

"""Matrices and 16-bit GEMMs that the bars and the tuning of linear operators share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .timing import Plan, seconds_per_call

Shapes = dict[str, tuple[int, int]]
"""Outputs and inputs."""
LLAMA_8B: Shapes = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
LLAMA_70B: Shapes = {"qkv": (10240, 8192), "out": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)}
Gemm = Callable[[Tensor, Tensor, Tensor], object]
"""Of x, weight and out."""


def library_gemm(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """What torch calls for it."""
    torch.mm(x, weight.t(), out=out)


def our_gemm(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """`linear`."""
    kernels.linear(x, weight, None, out)


def make_weights(plan: Plan, outputs: int, inputs: int, most: int = 64) -> Tensor:
    """As many random matrices as fill the rotation, two at least and `most` at most."""
    count = max(2, -(-plan.rotation_bytes // (outputs * inputs * plan.dtype.itemsize)))
    return plan.normal(min(count, most), outputs, inputs, std=0.02)


def gemm_seconds(plan: Plan, weights: Sequence[Tensor] | Tensor, tokens: int, gemm: Gemm) -> float:
    """Median time of one GEMM, each with the next of the matrices."""
    outputs, inputs = weights[0].shape
    x, out = plan.normal(tokens, inputs), plan.normal(tokens, outputs)
    return seconds_per_call(plan, lambda index: gemm(x, weights[index], out), len(weights))


def sixteen_bits(plan: Plan, outputs: int, inputs: int, tokens: int) -> float:
    """Median time of the GEMM with a 16-bit matrix, by what computes so many tokens."""
    return gemm_seconds(plan, make_weights(plan, outputs, inputs, most=16), tokens, gemm_of(tokens))


def gemm_of(tokens: int) -> Gemm:
    """What computes so many tokens in 16 bits."""
    return our_gemm if tokens <= kernels.SMALL_BATCH else library_gemm

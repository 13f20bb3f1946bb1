"""Weight bandwidth of `skinny_linear`, beside cuBLAS and a copy in the same run.

    python benchmark/kernels/skinny_linear.py [--dry-run] > benchmark/results/skinny_linear.json

Matrices of Llama 3.1 8B on one GPU. Matrices rotate, so none is in the cache.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, report, seconds_per_call
from torch import Tensor

import text_generation_kernels as kernels

# Outputs and inputs.
SHAPES = {
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "lm_head": (128256, 4096),
}
TOKENS = (1, 2, 4, 8, 16, 32, 64)
DRY_SHAPES = {"dry": (48, 32)}

Gemm = Callable[[Tensor, Tensor, Tensor], object]


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each matrix and number of tokens."""
    for name, (outputs, inputs) in (DRY_SHAPES if plan.dry_run else SHAPES).items():
        weights = make_weights(plan, outputs, inputs)
        num_bytes = weights[0].numel() * plan.dtype.itemsize
        for tokens in (1, 3) if plan.dry_run else TOKENS:
            ours = seconds(plan, weights, tokens, lambda x, weight, out: kernels.skinny_linear(x, weight, None, out))
            library = seconds(plan, weights, tokens, library_gemm)
            yield {
                "matrix": name,
                "outputs": outputs,
                "inputs": inputs,
                "tokens": tokens,
                "microseconds": ours * 1e6,
                "library_microseconds": library * 1e6,
                "gigabytes_per_second": num_bytes / ours / 1e9,
                "fraction_of_copy": num_bytes / ours / ceiling,
            }


def library_gemm(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """What torch calls for it."""
    torch.mm(x, weight.t(), out=out)


def make_weights(plan: Plan, outputs: int, inputs: int) -> Tensor:
    """As many random matrices as fill the rotation, two at least."""
    count = max(2, -(-plan.rotation_bytes // (outputs * inputs * plan.dtype.itemsize)))
    shape = (min(count, 64), outputs, inputs)
    return torch.empty(shape, dtype=plan.dtype, device=plan.device).normal_(std=0.02)


def seconds(plan: Plan, weights: Tensor, tokens: int, gemm: Gemm) -> float:
    """Median time of one GEMM."""
    x = torch.empty(tokens, weights.shape[2], dtype=plan.dtype, device=plan.device).normal_()
    out = torch.empty(tokens, weights.shape[1], dtype=plan.dtype, device=plan.device)
    return seconds_per_call(plan, lambda index: gemm(x, weights[index], out), len(weights))


if __name__ == "__main__":
    report("skinny_linear", __doc__.splitlines()[0], rows)

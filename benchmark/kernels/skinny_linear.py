"""Bar of `skinny_linear`: weight bandwidth, beside cuBLAS and a copy in the same run.

Matrices of Llama 3.1 8B on one GPU. Matrices rotate, so none is in the cache.
"""

from collections.abc import Iterator

from .bar import Bar
from .matmul import LLAMA_8B, Shapes, gemm_seconds, library_gemm, make_weights, our_gemm
from .timing import Plan, Row

SHAPES: Shapes = {**LLAMA_8B, "lm_head": (128256, 4096)}
TOKENS = (1, 2, 4, 8, 16, 32, 64)
DRY_SHAPES: Shapes = {"dry": (48, 32)}


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each matrix and number of tokens."""
    for name, (outputs, inputs) in (DRY_SHAPES if plan.dry_run else SHAPES).items():
        weights = make_weights(plan, outputs, inputs)
        num_bytes = weights[0].numel() * plan.dtype.itemsize
        for tokens in (1, 3) if plan.dry_run else TOKENS:
            ours, library = (gemm_seconds(plan, weights, tokens, gemm) for gemm in (our_gemm, library_gemm))
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


BARS = {"skinny_linear": Bar("16-bit GEMMs of few tokens, beside cuBLAS", rows)}

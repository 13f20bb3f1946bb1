"""Achieved fraction of copy bandwidth of `act_and_mul`, against the copy measured in the same run.

    python benchmark/kernels/act_and_mul.py [--dry-run] > benchmark/results/act_and_mul.json

Intermediate size of Llama 3.1 8B, from one token to a large prefill.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, bandwidth_row, report

import text_generation_kernels as kernels


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each size; the other activations at one size."""
    n, large = (96, 8) if plan.dry_run else (14336, 4096)
    sizes = [(tokens, "silu") for tokens in ((1, 8) if plan.dry_run else (1, 64, 4096, 16384))]
    sizes += [(large, "gelu"), (large, "gelu_tanh")]
    for tokens, activation in sizes:
        bytes_and_call = prepare(plan, tokens, n, activation)
        row = bandwidth_row(plan, *bytes_and_call, ceiling)
        yield {"tokens": tokens, "n": n, "activation": activation, **row}


def prepare(plan: Plan, tokens: int, n: int, activation: str = "silu") -> tuple[int, Callable[[int], None]]:
    """Bytes that one call moves at least (reads gate and up, writes out), and the call."""
    num_bytes = 3 * tokens * n * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    gate_up = torch.empty(buffers, tokens, 2 * n, dtype=plan.dtype, device=plan.device).normal_()
    out = torch.empty(buffers, tokens, n, dtype=plan.dtype, device=plan.device)

    def call(index: int) -> None:
        kernels.act_and_mul(gate_up[index], activation, out[index])

    return num_bytes, call


if __name__ == "__main__":
    report("act_and_mul", __doc__.splitlines()[0], rows)

"""Achieved fraction of copy bandwidth of `rms_norm`, against the copy measured in the same run.

    python benchmark/kernels/rms_norm.py [--dry-run] > benchmark/results/rms_norm.json

Hidden sizes of Llama 3.1 8B and 70B, from one token to a large prefill.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, bandwidth_row, report

import text_generation_kernels as kernels

EPS = 1e-5


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each size."""
    for hidden in (64,) if plan.dry_run else (4096, 8192):
        for tokens in (1, 8) if plan.dry_run else (1, 64, 4096, 16384):
            bytes_and_call = prepare(plan, tokens, hidden)
            yield {
                "tokens": tokens,
                "hidden": hidden,
                **bandwidth_row(plan, *bytes_and_call, ceiling),
            }


def prepare(plan: Plan, tokens: int, hidden: int) -> tuple[int, Callable[[int], None]]:
    """Bytes that one call moves at least (reads x, writes out), and the call."""
    num_bytes = 2 * tokens * hidden * plan.dtype.itemsize
    shape = (2, plan.buffers(num_bytes), tokens, hidden)
    x, out = torch.empty(shape, dtype=plan.dtype, device=plan.device).normal_()
    weight = torch.ones(hidden, dtype=plan.dtype, device=plan.device)

    def call(index: int) -> None:
        kernels.rms_norm(x[index], weight, EPS, out[index])

    return num_bytes, call


if __name__ == "__main__":
    report("rms_norm", __doc__.splitlines()[0], rows)

"""The recurrences of Mamba 1 and 2 beside the bytes that they move.

    python benchmark/kernels/mamba.py [--dry-run] > benchmark/results/mamba.json

Sizes of Mamba 1 with 8,192 channels of 16 numbers, and of Nemotron-H 8B: 128 heads of 64 times 128 numbers, 8 groups.
Decodes of several rows, and prompts that begin their requests. `deterministic` goes token after token.
`floor_microseconds`: the bytes of the formula at 4.3 TB/s.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from _timing import Plan, Row, report, seconds_per_call
from torch import Tensor

import text_generation_kernels as kernels

FLOOR_BANDWIDTH = 4.3e12


@dataclass(frozen=True)
class Runs:
    """Decodes of as many rows as there are tokens, or one prompt."""

    tokens: int
    decodes: bool

    @property
    def count(self) -> int:
        """How many there are."""
        return self.tokens if self.decodes else 1

    def where(self, plan: Plan) -> tuple[Tensor, Tensor | None, Tensor, int]:
        """Rows, starts, kv_lens and max_len."""
        rows = torch.randperm(self.count, device=plan.device)
        if self.decodes:
            return rows, None, torch.full_like(rows, 10, dtype=torch.int32), 1
        starts = torch.tensor([0, self.tokens], dtype=torch.int32, device=plan.device)
        return rows, starts, starts[1:], self.tokens


def rows(plan: Plan, _ceiling: float) -> Iterator[Row]:
    """One row for each operator and step."""
    decodes, prompts = ((1, 3), (20,)) if plan.dry_run else ((1, 64, 256), (512, 2048, 8192))
    for runs in (*(Runs(tokens, True) for tokens in decodes), *(Runs(tokens, False) for tokens in prompts)):
        yield timed(plan, "selective_scan", runs, scan(plan, runs))
        yield timed(plan, "state_space", runs, space(plan, runs, False))
        if not runs.decodes:
            yield timed(plan, "state_space, deterministic", runs, space(plan, runs, True))


def timed(plan: Plan, operator: str, runs: Runs, prepared: tuple[int, Callable[[int], None]]) -> Row:
    """`prepared`: bytes that one call moves at least, and the call."""
    num_bytes, call = prepared
    seconds = seconds_per_call(plan, call, plan.buffers(num_bytes))
    floor = num_bytes / FLOOR_BANDWIDTH * 1e6
    sizes: Row = {"operator": operator, "tokens": runs.tokens, "runs": runs.count}
    return sizes | {"microseconds": seconds * 1e6, "floor_microseconds": floor}


def normal(plan: Plan, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Normal numbers, in the model's type unless said otherwise."""
    return torch.empty(shape, dtype=dtype or plan.dtype, device=plan.device).normal_()


def weights(plan: Plan, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """a_log, d and dt_bias. Steps are about 0.1."""
    a_log, d, bias = (normal(plan, *size, dtype=torch.float32) for size in (shape, shape[:1], shape[:1]))
    return a_log, d, bias.sub_(2)


def scan(plan: Plan, runs: Runs) -> tuple[int, Callable[[int], None]]:
    """Reads x, dt, z, b and c, writes out, and reads the state of a decode and writes that of each run."""
    channels, n = (40, 4) if plan.dry_run else (8192, 16)
    state_bytes = runs.count * channels * n * 4 * (2 if runs.decodes else 1)
    num_bytes = runs.tokens * (4 * channels + 2 * n) * plan.dtype.itemsize + state_bytes
    buffers, where = plan.buffers(num_bytes), runs.where(plan)
    x, dt, z, out = normal(plan, 4, buffers, runs.tokens, channels)
    b, c = normal(plan, 2, buffers, runs.tokens, n)
    states = normal(plan, buffers, runs.count, channels, n, dtype=torch.float32)
    of_model = weights(plan, channels, n)

    def call(index: int) -> None:
        inputs = (x[index], dt[index], b[index], c[index], z[index])
        kernels.selective_scan(*inputs, *of_model, states[index], *where, out[index])

    return num_bytes, call


def space(plan: Plan, runs: Runs, deterministic: bool) -> tuple[int, Callable[[int], None]]:
    """As `scan`, without z."""
    heads, p, groups, n = (4, 6, 2, 4) if plan.dry_run else (128, 64, 8, 128)
    state_bytes = runs.count * heads * p * n * 4 * (2 if runs.decodes else 1)
    num_bytes = runs.tokens * (2 * heads * p + 2 * groups * n + heads) * plan.dtype.itemsize + state_bytes
    buffers, where = plan.buffers(num_bytes), runs.where(plan)
    x, out = normal(plan, 2, buffers, runs.tokens, heads, p)
    b, c = normal(plan, 2, buffers, runs.tokens, groups, n)
    dt = normal(plan, buffers, runs.tokens, heads)
    states = normal(plan, buffers, runs.count, heads, p, n, dtype=torch.float32)
    of_model = (*weights(plan, heads), 0.0, math.inf)

    def call(index: int) -> None:
        inputs = (x[index], dt[index], b[index], c[index])
        kernels.state_space(*inputs, *of_model, states[index], *where, out[index], deterministic)

    return num_bytes, call


if __name__ == "__main__":
    report("mamba", __doc__.splitlines()[0], rows)

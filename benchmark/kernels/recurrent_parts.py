"""Operators around recurrent mixers and gated attention, beside the bytes that they move.

    python benchmark/kernels/recurrent_parts.py [--dry-run] > benchmark/results/recurrent_parts.json

Sizes of Qwen3-Next: `causal_conv` of 8,192 channels, `gated_norm` of 32 groups of 128, `sigmoid_gate` of 4,096 columns;
and `gated_norm` of one group of 8,192, as Mamba 2 has it. Up to 256 tokens are decodes, more are chunks.
`floor_microseconds`: the bytes of the formula at 4.3 TB/s.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, report, seconds_per_call
from torch import Tensor

import text_generation_kernels as kernels

FLOOR_BANDWIDTH = 4.3e12
TAPS, EPS, MOST_DECODES = 4, 1e-6, 256
Call = Callable[[int], None]


def rows(plan: Plan, _ceiling: float) -> Iterator[Row]:
    """One row for each operator and size."""
    channels, groups, size, n = (64, 4, 16, 32) if plan.dry_run else (8192, 32, 128, 4096)
    for tokens, runs in ((1, 1), (300, 2)) if plan.dry_run else ((1, 1), (64, 64), (256, 256), (8192, 1), (8192, 256)):
        yield timed(plan, "causal_conv", tokens, convolution(plan, tokens, runs, channels)) | {"runs": runs}
    for tokens in (1, 8) if plan.dry_run else (1, 64, 256, 8192):
        yield timed(plan, "gated_norm", tokens, norm(plan, tokens, groups, size, gate_first=False))
        yield timed(plan, "gated_norm of one group", tokens, norm(plan, tokens, 1, channels, gate_first=True))
        yield timed(plan, "sigmoid_gate", tokens, gate(plan, tokens, n))


def timed(plan: Plan, operator: str, tokens: int, prepared: tuple[int, Call]) -> Row:
    """`prepared`: bytes that one call moves at least, and the call."""
    num_bytes, call = prepared
    seconds = seconds_per_call(plan, call, plan.buffers(num_bytes))
    floor = num_bytes / FLOOR_BANDWIDTH * 1e6
    return {"operator": operator, "tokens": tokens, "microseconds": seconds * 1e6, "floor_microseconds": floor}


def random(plan: Plan, *shape: int) -> Tensor:
    """Normal numbers in the model's type."""
    return torch.empty(shape, dtype=plan.dtype, device=plan.device).normal_()


def convolution(plan: Plan, tokens: int, runs: int, channels: int) -> tuple[int, Call]:
    """Reads x, writes out, and reads and writes a state for each run."""
    num_bytes = 2 * (tokens + runs * (TAPS - 1)) * channels * plan.dtype.itemsize
    buffers, lengths = plan.buffers(num_bytes), tokens // runs
    x, out = random(plan, 2, buffers, tokens, channels)
    states, order = random(plan, buffers, runs, TAPS - 1, channels), torch.randperm(runs, device=plan.device)
    weight, bias = random(plan, TAPS, channels).t(), random(plan, channels)
    starts = None
    if tokens > MOST_DECODES:
        starts = (lengths * torch.arange(runs + 1, device=plan.device)).int()
    kv_lens = torch.full((runs,), 10 + lengths, dtype=torch.int32, device=plan.device)

    def call(index: int) -> None:
        kernels.causal_conv(x[index], weight, bias, states[index], order, starts, kv_lens, out[index])

    return num_bytes, call


def norm(plan: Plan, tokens: int, groups: int, size: int, gate_first: bool) -> tuple[int, Call]:
    """Reads x and gate, writes out."""
    num_bytes = 3 * tokens * groups * size * plan.dtype.itemsize
    x, gates, out = random(plan, 3, plan.buffers(num_bytes), tokens, groups, size)
    weight = random(plan, size)

    def call(index: int) -> None:
        kernels.gated_norm(x[index], gates[index], weight, EPS, gate_first, out[index])

    return num_bytes, call


def gate(plan: Plan, tokens: int, n: int) -> tuple[int, Call]:
    """Reads x and gate, writes out."""
    num_bytes = 3 * tokens * n * plan.dtype.itemsize
    x, gates, out = random(plan, 3, plan.buffers(num_bytes), tokens, n)

    def call(index: int) -> None:
        kernels.sigmoid_gate(x[index], gates[index], out[index])

    return num_bytes, call


if __name__ == "__main__":
    report("recurrent_parts", __doc__.splitlines()[0], rows)

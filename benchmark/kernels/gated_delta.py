"""The gated delta rule of decodes and of prompts, beside the bytes that must be moved.

    python benchmark/kernels/gated_delta.py [--dry-run] > benchmark/results/gated_delta.json

Sizes of Qwen3-Next: 32 heads of 128 keys by 128 values, and 16 key heads. `one by one`: token by token, as decodes
are computed, and prompts in deterministic mode; `by blocks`: as prompts are computed otherwise.
`floor_microseconds`: states, and qkv and out of each token, read or written once at 4.3 TB/s.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, report, seconds_per_call

import text_generation_kernels as kernels

FLOOR_BANDWIDTH = 4.3e12
HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM = 32, 16, 128, 128
Call = Callable[[int], None]


def rows(plan: Plan, _ceiling: float) -> Iterator[Row]:
    """One row for each number of decodes, and for each set of prompts by both algorithms."""
    for runs in (1, 2) if plan.dry_run else (1, 8, 64, 256):
        yield timed(plan, runs, 1, "one by one")
    for runs, length in ((1, 3),) if plan.dry_run else ((1, 64), (1, 512), (1, 2048), (1, 8192), (4, 2048), (64, 16)):
        yield timed(plan, runs, length, "one by one")
        yield timed(plan, runs, length, "by blocks")


def timed(plan: Plan, runs: int, length: int, way: str) -> Row:
    """So many runs of one length. Those of one token are decodes."""
    num_bytes, call = prepare(plan, runs, length, way)
    seconds = seconds_per_call(plan, call, plan.buffers(num_bytes))
    floor = num_bytes / FLOOR_BANDWIDTH * 1e6
    result: Row = {"runs": runs, "tokens_each": length, "way": way}
    return result | {"microseconds": seconds * 1e6, "floor_microseconds": floor}


def prepare(plan: Plan, runs: int, length: int, way: str) -> tuple[int, Call]:
    """Bytes that one call moves at least, and the call."""
    heads, key_heads, key_dim, value_dim = (2, 1, 8, 8) if plan.dry_run else (HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM)
    tokens, width = runs * length, 2 * key_heads * key_dim + heads * value_dim
    num_bytes = 8 * runs * heads * key_dim * value_dim + tokens * (width + heads * value_dim) * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    qkv = torch.empty((buffers, tokens, width), dtype=plan.dtype, device=plan.device).normal_()
    gates = torch.empty((tokens, 2 * heads), dtype=plan.dtype, device=plan.device).normal_()
    out = torch.empty((buffers, tokens, heads, value_dim), dtype=plan.dtype, device=plan.device)
    states = torch.zeros(buffers, runs, heads, key_dim, value_dim, device=plan.device)
    rate, bias = torch.zeros(heads, device=plan.device), torch.full((heads,), -3.0, device=plan.device)
    order = torch.randperm(runs, device=plan.device)
    starts = None if length == 1 else (length * torch.arange(runs + 1, device=plan.device)).int()
    kv_lens = torch.full((runs,), 10 + length, dtype=torch.int32, device=plan.device)
    # Short runs are computed one by one as well, were they not said to be longer.
    max_len = 1 << 20 if way == "by blocks" else length

    def call(index: int) -> None:
        where = (order, starts, kv_lens, max_len, out[index], way == "one by one")
        kernels.gated_delta(qkv[index], gates, rate, bias, states[index], *where)

    return num_bytes, call


if __name__ == "__main__":
    report("gated_delta", __doc__.splitlines()[0], rows)

"""Achieved fraction of copy bandwidth of `qkv_postprocess`, against the copy measured in the same run.

    python benchmark/kernels/qkv_postprocess.py [--dry-run] > benchmark/results/qkv_postprocess.json

Heads of Llama 3.1 8B whole and on one of eight ranks, from one token to a large prefill. Slots are scattered over the
pool and positions over the table.
"""

from collections.abc import Callable, Iterator

import torch
from _pool import filled
from _timing import Plan, Row, bandwidth_row, report

import text_generation_kernels as kernels

POSITIONS = 8192


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each size."""
    for heads, kv_heads, head_dim in ((4, 2, 16),) if plan.dry_run else ((32, 8, 128), (4, 1, 128)):
        for tokens in (1, 8) if plan.dry_run else (1, 64, 4096, 16384):
            bytes_and_call = prepare(plan, tokens, heads, kv_heads, head_dim)
            size = {
                "tokens": tokens,
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": head_dim,
            }
            yield {**size, **bandwidth_row(plan, *bytes_and_call, ceiling)}


def prepare(plan: Plan, tokens: int, heads: int, kv_heads: int, head_dim: int) -> tuple[int, Callable[[int], None]]:
    """Bytes that one call moves at least (reads q, k and v, writes q and both caches), and the call."""
    size = (heads + 2 * kv_heads) * head_dim
    num_bytes = 2 * tokens * size * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    qkv = torch.empty(buffers, tokens, size, dtype=plan.dtype, device=plan.device).normal_()
    angles = torch.rand(POSITIONS, head_dim // 2, device=plan.device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(POSITIONS, (buffers, tokens), device=plan.device)
    slots = torch.randperm(buffers * tokens, device=plan.device).view(buffers, tokens)
    cache = filled(plan, buffers * tokens, kv_heads, head_dim)

    def call(index: int) -> None:
        step = (cos_sin, positions[index], slots[index])
        kernels.qkv_postprocess(qkv[index], None, None, None, 0.0, *step, cache.k, cache.v)

    return num_bytes, call


if __name__ == "__main__":
    report("qkv_postprocess", __doc__.splitlines()[0], rows)

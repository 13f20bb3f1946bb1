"""Achieved matrix rate of `prefill_attention`, beside a large GEMM of torch in the same run.

    python benchmark/kernels/prefill_attention.py [--dry-run] > benchmark/results/prefill_attention.json

One layer of Llama 3.1 8B: 32 heads, 8 KV heads, head size 128, causal, every token in a random slot of the pool.
Operations are 4 * heads * head size for each pair of a query and a key that it sees.
"""

from collections.abc import Callable, Iterator

import torch
from _pool import filled
from _timing import Plan, Row, report, seconds_per_call

import text_generation_kernels as kernels

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
# New tokens of each request, and tokens before them.
BATCHES = {
    "1 x 512": ([512], 0),
    "1 x 2048": ([2048], 0),
    "1 x 8192": ([8192], 0),
    "1 x 16384": ([16384], 0),
    "16 x 512": ([512] * 16, 0),
    "1 x 2048 after 6144": ([2048], 6144),
    "1 x 8192, 63 x 16": ([8192] + [16] * 63, 0),
    "64 x 16 after 512": ([16] * 64, 512),
    **{
        f"1 x {q_len} after {prefix}": ([q_len], prefix)
        for q_len in (1, 16, 128, 448, 960)
        for prefix in (2048, 8192, 32768)
    },
}
DRY_BATCHES = {"2 x 3..4 after 2": ([3, 4], 2)}


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:  # noqa: ARG001 - bound by the matrix rate, not by bandwidth
    """One row for each batch."""
    matrix_rate = product_rate(plan, 16 if plan.dry_run else 8192)
    for name, (q_lens, prefix) in (DRY_BATCHES if plan.dry_run else BATCHES).items():
        operations, call = prepare(plan, q_lens, prefix)
        rate = operations / seconds_per_call(plan, call, 2)
        yield {
            "batch": name,
            "microseconds": operations / rate * 1e6,
            "teraflops": rate / 1e12,
            "fraction_of_product": rate / matrix_rate,
        }


def product_rate(plan: Plan, size: int) -> float:
    """Operations a second of a square GEMM."""
    a, b, out = torch.empty(3, size, size, dtype=plan.dtype, device=plan.device).normal_()
    return 2 * size**3 / seconds_per_call(plan, lambda _: torch.mm(a, b, out=out), 1)


def prepare(plan: Plan, q_lens: list[int], prefix: int) -> tuple[int, Callable[[int], None]]:
    """Operations of one call, and the call."""
    kv_lens = [prefix + q_len for q_len in q_lens]
    pairs = sum(q_len * prefix + q_len * (q_len + 1) // 2 for q_len in q_lens)
    options = {"dtype": plan.dtype, "device": plan.device}
    q, out = torch.empty(2, sum(q_lens), HEADS, HEAD_DIM, **options).normal_()
    caches = [filled(plan, sum(kv_lens), KV_HEADS, HEAD_DIM) for _ in range(2)]
    slots = torch.randperm(sum(kv_lens), device=plan.device).int().split(kv_lens)
    table = torch.nn.utils.rnn.pad_sequence(list(slots), batch_first=True)
    b_row = torch.arange(len(q_lens), device=plan.device)
    starts = torch.tensor([0, *q_lens], device=plan.device).cumsum(0).int()
    kv_len = torch.tensor(kv_lens, dtype=torch.int32, device=plan.device)

    def call(index: int) -> None:
        cache = caches[index]
        kernels.prefill_attention(q, cache.k, cache.v, table, b_row, starts, kv_len, max(q_lens), HEAD_DIM**-0.5, out)

    return 4 * HEADS * HEAD_DIM * pairs, call


if __name__ == "__main__":
    report("prefill_attention", __doc__.splitlines()[0], rows)

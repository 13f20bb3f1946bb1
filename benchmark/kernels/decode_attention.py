"""Achieved fraction of copy bandwidth of `decode_attention`, against the copy measured in the same run.

    python benchmark/kernels/decode_attention.py [--dry-run] > benchmark/results/decode_attention.json

One layer of Llama 3.1 8B: 32 heads, 8 KV heads, head size 128, every token in a random slot of the pool. Only the
bytes of K and V count. The mixed batch has 64 lengths from 16 to 32,768, spread evenly over their logarithm. Beside it
`prefill_attention` on the same batches as chunks of one token that give the same bits whatever the others are.
"""

from collections.abc import Callable, Iterator

import torch
from _pool import filled
from _timing import Plan, Row, bandwidth_row, report, seconds_per_call

import text_generation_kernels as kernels

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
LENGTHS = {
    "1 x 512": [512],
    "1 x 8192": [8192],
    "8 x 1024": [1024] * 8,
    "64 x 2048": [2048] * 64,
    "256 x 1024": [1024] * 256,
    "16 x 32768": [32768] * 16,
    "64 x 16..32768": [round(16 * 2048 ** (index / 63)) for index in range(64)],
}
DRY_LENGTHS = {"2 x 3..4": [3, 4]}


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each batch."""
    for name, lengths in (DRY_LENGTHS if plan.dry_run else LENGTHS).items():
        num_bytes, call, call_chunks = prepare(plan, lengths)
        chunks = seconds_per_call(plan, call_chunks, plan.buffers(num_bytes))
        yield {
            "batch": name,
            **bandwidth_row(plan, num_bytes, call, ceiling),
            "microseconds_as_deterministic_chunks": chunks * 1e6,
        }


def prepare(plan: Plan, lengths: list[int]) -> tuple[int, Callable[[int], None], Callable[[int], None]]:
    """Bytes of K and V of all contexts, the call, and that of deterministic chunks."""
    batch, total, longest = len(lengths), sum(lengths), max(lengths)
    num_bytes = 2 * total * KV_HEADS * HEAD_DIM * plan.dtype.itemsize
    buffers = plan.buffers(num_bytes)
    options = {"dtype": plan.dtype, "device": plan.device}
    q, out = torch.empty(2, batch, HEADS, HEAD_DIM, **options).normal_()
    caches = [filled(plan, total, KV_HEADS, HEAD_DIM) for _ in range(buffers)]
    slots = torch.randperm(total, device=plan.device).int().split(lengths)
    table = torch.nn.utils.rnn.pad_sequence(list(slots), batch_first=True)
    b_row = torch.arange(batch, device=plan.device)
    kv_len = torch.tensor(lengths, dtype=torch.int32, device=plan.device)

    def call(index: int) -> None:
        cache = caches[index]
        kernels.decode_attention(q, cache.k, cache.v, table, b_row, kv_len, longest, HEAD_DIM**-0.5, out)

    starts = torch.arange(batch + 1, device=plan.device).int()

    def call_chunks(index: int) -> None:
        cache = caches[index]
        kernels.prefill_attention(q, cache.k, cache.v, table, b_row, starts, kv_len, 1, HEAD_DIM**-0.5, out, True)

    return num_bytes, call, call_chunks


if __name__ == "__main__":
    report("decode_attention", __doc__.splitlines()[0], rows)

"""Latent attention: achieved fraction of copy bandwidth in decodes, and matrix rate in prefill chunks.

    python benchmark/kernels/latent_attention.py [--dry-run] > benchmark/results/latent_attention.json

Layers of DeepSeek-V2-Lite, or of V3 on eight ranks (16 heads), and of V3 whole (128 heads): vectors of 512 elements and
a key of 64, every token in a random slot of the pool. Of decodes the bytes of the vectors count, of chunks the
operations of the absorbed variant. "expanded" are the same chunks with keys and values made of their contexts: how long
that takes, and attention.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from _timing import Plan, Row, bandwidth_row, report, seconds_per_call

import text_generation_kernels as kernels

RANK, ROPE, KEY, VALUE = 512, 64, 128, 128
SCALE = (KEY + ROPE) ** -0.5
DECODES = {
    "1 x 512": [512],
    "1 x 8192": [8192],
    "8 x 1024": [1024] * 8,
    "64 x 2048": [2048] * 64,
    "256 x 1024": [1024] * 256,
    "64 x 16..32768": [round(16 * 2048 ** (index / 63)) for index in range(64)],
}
CHUNKS = {
    "1 x 512": ([512], 0),
    "1 x 2048": ([2048], 0),
    "1 x 8192": ([8192], 0),
    "1 x 2048 after 6144": ([2048], 6144),
    "1 x 16 after 8192": ([16], 8192),
    "1 x 128 after 8192": ([128], 8192),
    "1 x 256 after 8192": ([256], 8192),
    "1 x 512 after 8192": ([512], 8192),
    "1 x 1024 after 8192": ([1024], 8192),
    "1 x 2048 after 30720": ([2048], 30720),
    "64 x 16 after 512": ([16] * 64, 512),
}
DRY: tuple[dict[str, list[int]], dict[str, tuple[list[int], int]]] = (
    {"2 x 3..4": [3, 4]},
    {"2 x 3..4 after 2": ([3, 4], 2)},
)


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each batch and number of heads."""
    decodes, chunks = DRY if plan.dry_run else (DECODES, CHUNKS)
    few = replace(plan, calls=4, replays=5)
    for heads in (16, 128):
        for name, lengths in decodes.items():
            num_bytes, call = decode(plan, heads, lengths)
            yield {"heads": heads, "decodes": name, **bandwidth_row(plan, num_bytes, call, ceiling)}
        for name, (q_lens, prefix) in chunks.items():
            operations, call = chunk(plan, heads, q_lens, prefix)
            seconds = seconds_per_call(few, call, 2)
            rate = operations / seconds / 1e12
            yield {"heads": heads, "chunks": name, "microseconds": seconds * 1e6, "teraflops": rate}
    for name, (q_lens, prefix) in chunks.items():
        expand, attend = (seconds_per_call(few, call, 1) * 1e6 for call in expanded(plan, 16, q_lens, prefix))
        yield {"heads": 16, "expanded": name, "microseconds_to_expand": expand, "microseconds_of_attention": attend}


def decode(plan: Plan, heads: int, lengths: list[int]) -> tuple[int, Callable[[int], None]]:
    """Bytes of all latent vectors, and the call."""
    num_bytes = sum(lengths) * (RANK + ROPE) * plan.dtype.itemsize
    q, out, caches, table, b_row, kv_len = context(plan, heads, len(lengths), lengths, plan.buffers(num_bytes))

    def call(index: int) -> None:
        kernels.latent_decode_attention(q, caches[index], table, b_row, kv_len, max(lengths), SCALE, out, False)

    return num_bytes, call


def chunk(plan: Plan, heads: int, q_lens: list[int], prefix: int) -> tuple[int, Callable[[int], None]]:
    """Operations of one call, and the call."""
    q, out, caches, table, b_row, kv_len = context(plan, heads, sum(q_lens), [prefix + each for each in q_lens], 2)
    starts = torch.tensor([0, *q_lens], device=plan.device).cumsum(0).int()

    def call(index: int) -> None:
        batch = (table, b_row, starts, kv_len, max(q_lens))
        kernels.latent_prefill_attention(q, caches[index], *batch, SCALE, out)

    pairs = sum(each * prefix + each * (each + 1) // 2 for each in q_lens)
    return 2 * heads * (2 * RANK + ROPE) * pairs, call


def expanded(plan: Plan, heads: int, q_lens: list[int], prefix: int) -> Iterator[Callable[[int], None]]:
    """What makes keys and values of all contexts, and attention of the chunks over them."""
    options = {"dtype": plan.dtype, "device": plan.device}
    lengths = [prefix + each for each in q_lens]
    _, _, caches, table, b_row, kv_len = context(plan, heads, 1, lengths, 1)
    keys = torch.empty(heads, KEY, RANK, **options).normal_()
    values = torch.empty(heads, RANK, VALUE, **options).normal_()
    q, k = (torch.empty(tokens, heads, KEY + ROPE, **options).normal_() for tokens in (sum(q_lens), sum(lengths)))
    v, out = (torch.empty(tokens, heads, VALUE, **options).normal_() for tokens in (sum(lengths), sum(q_lens)))
    first = kv_len.cumsum(0).int() - kv_len
    starts = torch.tensor([0, *q_lens], device=plan.device).cumsum(0).int()
    order = torch.arange(2 * sum(lengths), dtype=torch.int32, device=plan.device)
    in_order = order.as_strided((sum(lengths), sum(lengths)), (1, 1))

    def expand(_: int) -> None:
        kernels.latent_expand(caches[0], table, b_row, first, kv_len, keys, values, k, v)

    def attend(_: int) -> None:
        kernels.prefill_attention(q, k, v, in_order, first.long(), starts, kv_len, max(q_lens), SCALE, out)

    yield expand
    yield attend


def context(plan: Plan, heads: int, tokens: int, lengths: list[int], buffers: int) -> tuple[torch.Tensor, ...]:
    """Queries, room for the result, caches, and where positions lie in them."""
    options = {"dtype": plan.dtype, "device": plan.device}
    q, out = torch.empty(tokens, heads, RANK + ROPE, **options).normal_(), torch.empty(tokens, heads, RANK, **options)
    caches = torch.empty(buffers, sum(lengths), 1, RANK + ROPE, **options).normal_()
    slots = torch.randperm(sum(lengths), device=plan.device).int().split(lengths)
    table = torch.nn.utils.rnn.pad_sequence(list(slots), batch_first=True)
    b_row = torch.arange(len(lengths), device=plan.device)
    return q, out, caches, table, b_row, torch.tensor(lengths, dtype=torch.int32, device=plan.device)


if __name__ == "__main__":
    report("latent_attention", __doc__.splitlines()[0], rows)

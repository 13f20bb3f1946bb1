"""Latent attention: achieved fraction of copy bandwidth in decodes, and matrix rate in chunks of prompts.

    python benchmark/kernels/latent_attention.py [--dry-run] > benchmark/results/latent_attention.json

Layers of DeepSeek-V2-Lite, or of V3 on eight ranks (16 heads), and of V3 whole (128 heads): vectors of 512 elements and
a key of 64, every token in a random slot of the pool. Of decodes the bytes of the vectors count, of chunks the
operations of the absorbed form. "whole" is a prompt whose keys and values are made for the purpose: attention alone.
"""

from collections.abc import Callable, Iterator

import torch
from _timing import Plan, Row, bandwidth_row, report, seconds_per_call

from text_generation_server import kernels

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
    "64 x 16 after 512": ([16] * 64, 512),
}
WHOLE = (512, 2048, 8192)
DRY: tuple[dict[str, list[int]], dict[str, tuple[list[int], int]], tuple[int, ...]] = (
    {"2 x 3..4": [3, 4]},
    {"2 x 3..4 after 2": ([3, 4], 2)},
    (5,),
)


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each batch and number of heads."""
    decodes, chunks, whole = DRY if plan.dry_run else (DECODES, CHUNKS, WHOLE)
    for heads in (16, 128):
        for name, lengths in decodes.items():
            num_bytes, call = decode(plan, heads, lengths)
            yield {"heads": heads, "decodes": name, **bandwidth_row(plan, num_bytes, call, ceiling)}
        for name, (q_lens, prefix) in chunks.items():
            yield {"heads": heads, "chunks": name, **rate(plan, *chunk(plan, heads, q_lens, prefix))}
    for length in whole:
        yield {"heads": 16, "whole": f"1 x {length}", **rate(plan, *whole_prompt(plan, 16, length))}


def rate(plan: Plan, operations: int, call: Callable[[int], None]) -> Row:
    """Time and operations a second."""
    seconds = seconds_per_call(plan, call, 2)
    return {"microseconds": seconds * 1e6, "teraflops": operations / seconds / 1e12}


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
        kernels.latent_prefill_attention(q, caches[index], *batch, SCALE, out, False, False)

    pairs = sum(each * prefix + each * (each + 1) // 2 for each in q_lens)
    return 2 * heads * (2 * RANK + ROPE) * pairs, call


def whole_prompt(plan: Plan, heads: int, length: int) -> tuple[int, Callable[[int], None]]:
    """Operations of attention over keys and values of each head, and the call."""
    options = {"dtype": plan.dtype, "device": plan.device}
    q, k = torch.empty(2, length, heads, KEY + ROPE, **options).normal_()
    v, out = torch.empty(2, length, heads, VALUE, **options).normal_()
    table = torch.arange(length, dtype=torch.int32, device=plan.device)[None]
    row, kv_len = (
        torch.zeros(1, dtype=torch.int64, device=plan.device),
        torch.tensor([length], device=plan.device).int(),
    )
    starts = torch.tensor([0, length], device=plan.device).int()

    def call(_: int) -> None:
        kernels.prefill_attention(q, k, v, table, row, starts, kv_len, length, SCALE, out)

    return heads * (KEY + ROPE + VALUE) * length * (length + 1), call


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

"""Bar of latent attention: fraction of copy bandwidth in decodes, and matrix rate in prefill chunks.

Layers of DeepSeek-V2-Lite, or of V3 on eight ranks (16 heads), and of V3 whole (128 heads): vectors of 512 elements and
a key of 64, every token in a random slot of the pool. Of decodes the bytes of the vectors count, of chunks the
operations of the absorbed variant. "expanded" are the same chunks with keys and values made of their contexts: how long
that takes, and attention.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

import text_generation_kernels as kernels

from .bar import Bar, bandwidth_row
from .pool import Batches, Context
from .timing import Call, Plan, Row, seconds_per_call

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
CHUNKS: Batches = {
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
DRY: tuple[dict[str, list[int]], Batches] = (
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


def decode(plan: Plan, heads: int, lengths: list[int]) -> tuple[int, Call]:
    """Bytes of all latent vectors, and the call."""
    context = Context.of_decodes(plan, lengths)
    num_bytes = context.slots * (RANK + ROPE) * plan.dtype.itemsize
    q, out, caches = tensors(plan, heads, len(lengths), context, plan.buffers(num_bytes))
    batch = context.decode

    def call(index: int) -> None:
        kernels.latent_decode_attention(q, caches[index], batch, SCALE, out)

    return num_bytes, call


def chunk(plan: Plan, heads: int, q_lens: list[int], prefix: int) -> tuple[int, Call]:
    """Operations of one call, and the call."""
    context = Context.of(plan, q_lens, prefix)
    q, out, caches = tensors(plan, heads, sum(q_lens), context, 2)
    batch = context.prefill

    def call(index: int) -> None:
        kernels.latent_prefill_attention(q, caches[index], batch, SCALE, out)

    return 2 * heads * (2 * RANK + ROPE) * context.pairs, call


def expanded(plan: Plan, heads: int, q_lens: list[int], prefix: int) -> Iterator[Call]:
    """What makes keys and values of all contexts, and attention of the chunks over them."""
    context = Context.of(plan, q_lens, prefix)
    slots, tokens = context.slots, sum(q_lens)
    _, _, caches = tensors(plan, heads, 1, context, 1)
    keys, values = plan.normal(heads, KEY, RANK), plan.normal(heads, RANK, VALUE)
    q, k = (plan.normal(count, heads, KEY + ROPE) for count in (tokens, slots))
    v, out = (plan.normal(count, heads, VALUE) for count in (slots, tokens))
    first = context.kv_lens.cumsum(0).int() - context.kv_lens
    order = torch.arange(2 * slots, dtype=torch.int32, device=plan.device)
    in_order = replace(context, table=order.as_strided((slots, slots), (1, 1)), rows=first.long()).prefill

    def expand(_: int) -> None:
        kernels.latent_expand(caches[0], context.table, context.rows, first, context.kv_lens, keys, values, k, v)

    def attend(_: int) -> None:
        kernels.prefill_attention(q, kernels.KvCache(k, v), in_order, SCALE, out)

    yield expand
    yield attend


def tensors(plan: Plan, heads: int, tokens: int, context: Context, buffers: int) -> tuple[torch.Tensor, ...]:
    """Queries, room for the result, and caches."""
    caches = plan.normal(buffers, context.slots, 1, RANK + ROPE)
    return plan.normal(tokens, heads, RANK + ROPE), plan.normal(tokens, heads, RANK), caches


BARS = {"latent_attention": Bar("latent attention: decodes, chunks, and expanded keys and values", rows)}

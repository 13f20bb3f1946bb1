"""Bars of attention in one layer of Llama 3.1 8B, every token in a random slot of the pool.

`decode_attention`: only the bytes of K and V count. The mixed batch has 64 lengths from 16 to 32,768, spread evenly
over their logarithm. Beside it `prefill_attention` on the same batches as chunks of one token that give the same bits
whatever the others are.
`window_attention`: the same operator for the last tokens of each request, whose K and V count once.
`prefill_attention`: the matrix rate beside a large GEMM of torch. Operations are 4 * heads * head size for each pair
of a query and a key that it sees.
"""

from collections.abc import Iterator

import text_generation_kernels as kernels

from .bar import Bar, bandwidth_row
from .pool import Batches, Context, filled
from .timing import Call, Plan, Prepared, Row, gemm_rate, seconds_per_call

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SCALE = HEAD_DIM**-0.5
DECODES = {
    "1 x 512": [512],
    "1 x 8192": [8192],
    "8 x 1024": [1024] * 8,
    "64 x 2048": [2048] * 64,
    "256 x 1024": [1024] * 256,
    "16 x 32768": [32768] * 16,
    "64 x 16..32768": [round(16 * 2048 ** (index / 63)) for index in range(64)],
}
WINDOWS = {"1 x 512": [512], "8 x 2048": [2048] * 8, "64 x 2048": [2048] * 64, "64 x 8192": [8192] * 64}
WIDTHS = (1, 2, 4, 8)
DRY_DECODES = {"2 x 3..4": [3, 4]}
CHUNKS: Batches = {
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
DRY_CHUNKS: Batches = {"2 x 3..4 after 2": ([3, 4], 2)}


def decodes(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each batch."""
    for name, lengths in (DRY_DECODES if plan.dry_run else DECODES).items():
        num_bytes, call, call_chunks = prepare_decodes(plan, lengths)
        chunks = seconds_per_call(plan, call_chunks, plan.buffers(num_bytes))
        row: Row = {"batch": name} | bandwidth_row(plan, num_bytes, call, ceiling)
        yield row | {"microseconds_as_deterministic_chunks": chunks * 1e6}


def prepare_decodes(plan: Plan, lengths: list[int]) -> tuple[int, Call, Call]:
    """Bytes of K and V of all contexts, the call, and that of deterministic chunks."""
    context = Context.of_decodes(plan, lengths)
    num_bytes = 2 * context.slots * KV_HEADS * HEAD_DIM * plan.dtype.itemsize
    (q, out), decodes, as_chunks = plan.normal(2, len(lengths), HEADS, HEAD_DIM), context.decode, context.prefill
    caches = [filled(plan, context.slots, KV_HEADS, HEAD_DIM) for _ in range(plan.buffers(num_bytes))]

    def call(index: int) -> None:
        kernels.decode_attention(q, caches[index], decodes, SCALE, out)

    def call_chunks(index: int) -> None:
        kernels.prefill_attention(q, caches[index], as_chunks, SCALE, out, True)

    return num_bytes, call, call_chunks


def windows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each batch and number of tokens."""
    for name, lengths in (DRY_DECODES if plan.dry_run else WINDOWS).items():
        for width in WIDTHS[:2] if plan.dry_run else WIDTHS:
            row: Row = {"batch": name, "width": width}
            yield row | bandwidth_row(plan, *prepare_windows(plan, lengths, width), ceiling)


def prepare_windows(plan: Plan, lengths: list[int], width: int) -> Prepared:
    """Bytes of K and V of all contexts, and the call."""
    context = Context.of_decodes(plan, lengths)
    num_bytes = 2 * context.slots * KV_HEADS * HEAD_DIM * plan.dtype.itemsize
    (q, out), batch = plan.normal(2, len(lengths) * width, HEADS, HEAD_DIM), context.windows(width)
    caches = [filled(plan, context.slots, KV_HEADS, HEAD_DIM) for _ in range(plan.buffers(num_bytes))]
    return num_bytes, lambda index: kernels.decode_attention(q, caches[index], batch, SCALE, out)


def chunks(plan: Plan, _ceiling: float) -> Iterator[Row]:
    """One row for each batch."""
    matrix_rate = gemm_rate(plan)
    for name, (q_lens, prefix) in (DRY_CHUNKS if plan.dry_run else CHUNKS).items():
        operations, call = prepare_chunks(plan, q_lens, prefix)
        seconds = seconds_per_call(plan, call, 2)
        rate = operations / seconds
        row: Row = {"batch": name, "microseconds": seconds * 1e6, "teraflops": rate / 1e12}
        yield row | {"fraction_of_product": rate / matrix_rate}


def prepare_chunks(plan: Plan, q_lens: list[int], prefix: int) -> tuple[int, Call]:
    """Operations of one call, and the call."""
    context = Context.of(plan, q_lens, prefix)
    (q, out), batch = plan.normal(2, sum(q_lens), HEADS, HEAD_DIM), context.prefill
    caches = [filled(plan, context.slots, KV_HEADS, HEAD_DIM) for _ in range(2)]

    def call(index: int) -> None:
        kernels.prefill_attention(q, caches[index], batch, SCALE, out)

    return 4 * HEADS * HEAD_DIM * context.pairs, call


BARS = {
    "decode_attention": Bar("attention of decodes over scattered slots", decodes),
    "window_attention": Bar("attention of several tokens of each request, over scattered slots", windows),
    "prefill_attention": Bar("attention of prompts and chunks, beside a large GEMM", chunks),
}

"""Bar of attention over a KV cache of 8 or 4 bits, and the operator that writes it, beside the 16-bit cache.

One layer of Llama 3.1 8B (32 heads) and of the 70B (64 heads): 8 KV heads, head size 128. Decode: bytes are codes and
scales, or elements, of K and V; slots in order or at random. Prefill: one prompt, or a chunk after a prefix.
"""

import os
from collections.abc import Iterator

import torch

import text_generation_kernels as kernels
from text_generation_server.layers.infer.state import CacheShape

from .bar import Bar
from .pool import Context, filled
from .timing import Call, Plan, Prepared, Row, seconds_per_call

KV_HEADS, HEAD_DIM = 8, 128
SCALE = HEAD_DIM**-0.5
TYPES: dict[str, torch.dtype | None] = {"bfloat16": None, **kernels.KV_CODES}
DECODES = ((64, 2048), (64, 8192), (16, 8192), (1, 8192), (256, 1024))
PREFILLS = ((1, 2048, 0), (1, 8192, 0), (1, 448, 8192), (64, 16, 512), (1, 16, 8192))
"""Requests, new tokens of each, and tokens before them."""
WRITES = (1, 64, 4096)
_FEW = 4
"""Sets of buffers where bandwidth is not the bound."""


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One for each type and shape."""
    if not plan.dry_run:
        with kernels.compile_only(len(os.sched_getaffinity(0))):
            for _, _, call in cases(plan):
                call(0)
    for labels, num_bytes, call in cases(plan):
        seconds = seconds_per_call(plan, call, plan.buffers(num_bytes) if num_bytes else _FEW)
        fraction = {"fraction_of_copy": num_bytes / seconds / ceiling} if num_bytes else {}
        yield {**labels, "microseconds": seconds * 1e6, **fraction}


def cases(plan: Plan) -> Iterator[tuple[Row, int, Call]]:
    """What it is, its bytes where they bound it, and the call."""
    shapes = [(heads, *shape, scattered) for heads in (32, 64) for shape in DECODES for scattered in (False, True)]
    for heads, batch, length, scattered in [(32, 2, 3, True)] if plan.dry_run else shapes:
        for name, codes in TYPES.items():
            labels = {"decode": f"{batch} x {length}", "heads": heads, "slots": "random" if scattered else "in order"}
            yield {**labels, "kv_cache_dtype": name}, *decode(plan, codes, heads, batch, length, scattered)
    for batch, new, prefix in ((2, 3, 2),) if plan.dry_run else PREFILLS:
        for name, codes in TYPES.items():
            yield (
                {"prefill": f"{batch} x {new} after {prefix}", "kv_cache_dtype": name},
                0,
                prefill(plan, codes, batch, new, prefix),
            )
    for tokens in (3,) if plan.dry_run else WRITES:
        for name, codes in TYPES.items():
            yield {"qkv_postprocess": tokens, "kv_cache_dtype": name}, 0, write(plan, codes, tokens)


def caches(plan: Plan, codes: torch.dtype | None, buffers: int, slots: int) -> list[kernels.KvCache]:
    """So many layers."""
    return [filled(plan, slots, KV_HEADS, HEAD_DIM, codes) for _ in range(buffers)]


def decode(plan: Plan, codes: torch.dtype | None, heads: int, batch: int, length: int, scattered: bool) -> Prepared:
    """Bytes of K and V of all contexts, and the call."""
    context = Context.of_decodes(plan, [length] * batch, scattered)
    num_bytes = context.slots * CacheShape(KV_HEADS, HEAD_DIM, HEAD_DIM, codes).bytes_per_slot(plan.dtype)
    stored = caches(plan, codes, plan.buffers(num_bytes), context.slots)
    (q, out), requests = plan.normal(2, batch, heads, HEAD_DIM), context.decode

    def call(index: int) -> None:
        kernels.decode_attention(q, stored[index], requests, SCALE, out)

    return num_bytes, call


def prefill(plan: Plan, codes: torch.dtype | None, batch: int, new: int, prefix: int) -> Call:
    """The call."""
    context = Context.of(plan, [new] * batch, prefix)
    stored = caches(plan, codes, _FEW, context.slots)
    (q, out), requests = plan.normal(2, batch * new, 32, HEAD_DIM), context.prefill

    def call(index: int) -> None:
        kernels.prefill_attention(q, stored[index], requests, SCALE, out)

    return call


def write(plan: Plan, codes: torch.dtype | None, tokens: int) -> Call:
    """The call."""
    stored = caches(plan, codes, _FEW, 2 * tokens)
    qkv = plan.normal(_FEW, tokens, (32 + 2 * KV_HEADS) * HEAD_DIM)
    cos_sin = torch.empty(tokens, HEAD_DIM, device=plan.device).normal_()
    positions = torch.arange(tokens, device=plan.device)
    slots = torch.randperm(2 * tokens, device=plan.device)[:tokens]
    new = kernels.NewTokens(cos_sin, positions, slots)

    def call(index: int) -> None:
        kernels.qkv_postprocess(qkv[index], kernels.NO_PROLOGUE, new, stored[index])

    return call


BARS = {"kv_cache": Bar("attention over keys and values of 8 and 4 bits, and what writes them", rows)}

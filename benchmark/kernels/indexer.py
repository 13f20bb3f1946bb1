"""Bar of sparse attention: what choosing positions costs a decode, and what attention saves by it.

Layers of DeepSeek V3.2 on eight ranks (16 heads of attention, 64 of the indexer) and 2,048 positions of each context.
"dense" is attention over the whole context; "sparse" is all of scores, choice and attention over the chosen slots.
"""

from collections.abc import Iterator

import torch

import text_generation_kernels as kernels

from .bar import Bar
from .latent_attention import RANK, ROPE, SCALE
from .pool import Context
from .timing import Plan, Row, seconds_per_call

HEADS, INDEX_HEADS, SIZE, TOP_K = 16, 64, 128, 2048
DECODES = {f"{count} x {length}": [length] * count for count in (1, 8, 64) for length in (2048, 8192, 32_768)}
DECODES |= {"1 x 131072": [131_072]}
DRY = {"2 x 9..12": [9, 12]}


def rows(plan: Plan, _: float) -> Iterator[Row]:
    """One row for each batch."""
    for name, lengths in (DRY if plan.dry_run else DECODES).items():
        yield {"decodes": name, **_timed(plan, lengths, 4 if plan.dry_run else TOP_K)}


def _timed(plan: Plan, lengths: list[int], top_k: int) -> Row:
    context = Context.of_decodes(plan, lengths)
    count, batch = len(lengths), context.decode
    buffers = min(4, plan.buffers(context.slots * (RANK + ROPE) * plan.dtype.itemsize))
    cache = plan.normal(buffers, context.slots, 1, RANK + ROPE)
    keys = plan.normal(buffers, context.slots, 1, SIZE)
    q, out = plan.normal(count, HEADS, RANK + ROPE), plan.normal(count, HEADS, RANK)
    index_q, weights = plan.normal(count, INDEX_HEADS, SIZE), plan.normal(count, INDEX_HEADS)
    scores = plan.normal(count, -(-max(lengths) // 64) * 64, dtype=torch.float32)
    slots = torch.zeros(count, top_k, dtype=torch.int32, device=plan.device)
    chosen = kernels.Decodes(slots, torch.arange(count, device=plan.device), batch.kv_lens.clamp(max=top_k), top_k)

    def dense(index: int) -> None:
        kernels.latent_decode_attention(q, cache[index], batch, SCALE, out)

    def score(index: int) -> None:
        kernels.index_scores(index_q, weights, keys[index], batch, top_k, scores)

    def choose(_: int) -> None:
        kernels.top_slots(scores, batch, slots)

    def attend(index: int) -> None:
        kernels.latent_decode_attention(q, cache[index], chosen, SCALE, out)

    def sparse(index: int) -> None:
        score(index)
        choose(index)
        attend(index)

    calls = {"dense": dense, "score": score, "choose": choose, "attend": attend, "sparse": sparse}
    return {f"{name}_microseconds": seconds_per_call(plan, call, buffers) * 1e6 for name, call in calls.items()}


BARS = {"indexer": Bar("sparse attention of decodes: scores, choice, and attention to 2,048 positions", rows)}

"""Prefill attention in which tokens of a span attend to each other in both directions (images of Gemma 3, 2025).

    out[t] = sum over c < seen_ends[t] of softmax(scale * q[t] . k[c]) * v[c]

`seen_ends[t]` is position(t) + 1 for text, where it is `prefill_attention` without options, and the end of the span for
a token of one. With a `window` a token attends to c > position(t) - window alone: the window bounds what lies before a
token, not what follows it in its span.

Layouts: those of `prefill_attention`. Keys and values below it are in the cache, so a
chunk ends where a span does. Accumulation is float32.

There is a torch implementation alone, which reads lengths on the host and so has no place in a CUDA graph. It is called
once a layer for steps in which a chunk has positions of such a span; all others call `prefill_attention`. Bytes floor:
q, out, and K and V of each request once.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.register import register
from .kv_cache import KvCache
from .kv_quantisation import read_slots
from .requests import Chunks


def span_attention_torch(q: Tensor, cache: KvCache, batch: Chunks, scale: float, out: Tensor, window: int = 0) -> None:
    """Torch implementation: one fused attention call a request, on CPU and CUDA. Raises ValueError without
    `seen_ends`.
    """
    if batch.seen_ends is None:
        raise ValueError("span_attention: chunks without seen_ends are prefill_attention's")
    starts, kv_lens, rows = batch.starts.tolist(), batch.kv_lens.tolist(), batch.rows.tolist()
    for row, start, end, kv_len in zip(rows, starts, starts[1:], kv_lens, strict=False):
        if start == end or kv_len == 0:
            continue
        first = kv_len - (end - start)
        first_seen = max(0, first + 1 - window) if window else 0
        k, v = read_slots(cache, batch.slot_table[row, first_seen:kv_len], q.dtype)
        keys = torch.arange(first_seen, kv_len, device=q.device)
        seen = keys < batch.seen_ends[start:end, None]
        if window:
            seen &= keys > torch.arange(first, kv_len, device=q.device)[:, None] - window
        attended = functional.scaled_dot_product_attention(
            *(each.transpose(0, 1)[None] for each in (q[start:end], k, v)), attn_mask=seen, scale=scale, enable_gqa=True
        )
        out[start:end] = attended[0].transpose(0, 1)


span_attention = register(span_attention_torch, mutates=("out",))

"""Reference decode attention in torch: the CPU path, and what the kernels are compared with."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ._attention_torch import attend
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_cache import KvCache
from .kv_quantisation import read_slots
from .requests import Decodes

# Up to this many cache elements for the longest request, one padded call for the batch beats a call for each request:
# measured on CPU, a call costs about as much as copying 20,000 elements.
_PADDED_LIMIT = 16_384


def decode_attention_torch(
    q: Tensor,
    cache: KvCache,
    batch: Decodes,
    scale: float,
    out: Tensor,
    deterministic: bool = False,
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Torch implementation."""
    requests, num_heads, head_dim = q.shape
    num_kv_heads = cache.k.shape[1]
    if options.softcap or options.sinks is not None or options.slopes is not None:
        for index, context in enumerate(_contexts(cache, batch, options.window, q.dtype)):
            if context is None:
                out[index].zero_()
            else:
                out[index] = attend(q[index : index + 1], *context, scale, options)[0]
        return
    # The heads of a group are rows of one small matrix: K and V are read once for all of them.
    grouped = (requests, num_kv_heads, num_heads // num_kv_heads, -1)
    small = batch.max_kv_len * num_kv_heads * head_dim <= _PADDED_LIMIT
    call = _padded if requests > 1 and small and not deterministic else _one_by_one
    call(q.view(grouped), cache, batch, scale, out.view(grouped), options.window)


def _padded(q: Tensor, cache: KvCache, batch: Decodes, scale: float, out: Tensor, window: int) -> None:
    kv_lens, max_kv_len = batch.kv_lens, batch.max_kv_len
    positions = torch.arange(max_kv_len, device=q.device)
    valid = positions < kv_lens[:, None]
    if window:
        valid &= positions >= kv_lens[:, None] - window
    slots = batch.slot_table[batch.rows, :max_kv_len]
    slots = torch.where(valid, slots, slots[:, :1]).flatten()
    k, v = (
        each.view(q.shape[0], max_kv_len, *each.shape[1:]).transpose(1, 2) for each in read_slots(cache, slots, q.dtype)
    )
    mask = valid[:, None, None, :]
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    # A request of length 0 has followed a stale entry: what it read there may be NaN.
    out.copy_(attended.masked_fill((kv_lens == 0)[:, None, None, None], 0.0))


def _one_by_one(q: Tensor, cache: KvCache, batch: Decodes, scale: float, out: Tensor, window: int) -> None:
    for index, context in enumerate(_contexts(cache, batch, window, q.dtype)):
        if context is None:
            out[index].zero_()
            continue
        k, v = (each.transpose(0, 1)[None] for each in context)
        out[index] = functional.scaled_dot_product_attention(q[index : index + 1], k, v, scale=scale)[0]


def _contexts(
    cache: KvCache, batch: Decodes, window: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor] | None]:
    """K and V that the last position of each request sees, [seen, kv_heads, head_dim]; None where there are none."""
    for row, kv_len in zip(batch.rows.tolist(), batch.kv_lens.tolist(), strict=True):
        if kv_len == 0:
            yield None
            continue
        slots = batch.slot_table[row, max(0, kv_len - window) if window else 0 : kv_len]
        yield read_slots(cache, slots, dtype)

"""Reference prefill attention in torch: the CPU path, and what the kernels are compared with."""

import torch
from torch import Tensor
from torch.nn import functional

from ._attention_torch import attend
from .attention_options import NO_OPTIONS, AttentionOptions
from .kv_cache import KvCache
from .kv_quantisation import read_slots
from .requests import Chunks


def prefill_attention_torch(
    q: Tensor,
    cache: KvCache,
    batch: Chunks,
    scale: float,
    out: Tensor,
    deterministic: bool = False,  # noqa: ARG001 - for kernels that divide contexts by how many there are
    options: AttentionOptions = NO_OPTIONS,
) -> None:
    """Torch implementation: one fused attention call a request, so nothing is padded."""
    window = options.window
    starts, kv_lens, rows = batch.starts.tolist(), batch.kv_lens.tolist(), batch.rows.tolist()
    for row, start, end, kv_len in zip(rows, starts, starts[1:], kv_lens, strict=False):
        q_len = end - start
        if q_len == 0 or kv_len == 0:
            continue
        first_seen = max(0, kv_len - q_len + 1 - window) if window else 0
        slots = batch.slot_table[row, first_seen:kv_len]
        k, v = read_slots(cache, slots, q.dtype)
        if options.softcap or options.sinks is not None or options.slopes is not None:
            out[start:end] = attend(q[start:end], k, v, scale, options)
        else:
            out[start:end] = _attend_fused(q[start:end], k, v, scale, window)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """Attention of the last positions of one request, with torch's fused call."""
    q_len, kv_len = q.shape[0], k.shape[0]
    mask = None
    if q_len > 1 and (q_len < kv_len or 0 < window < kv_len):
        mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
        if window:
            mask = mask.triu(kv_len - q_len + 1 - window)
    attended = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None and q_len > 1,
        scale=scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)

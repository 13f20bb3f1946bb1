"""Reference prefill attention in torch: the CPU path, and what the kernels are compared with."""

import torch
from torch import Tensor
from torch.nn import functional

from ._attention_torch import attend
from .kv_quantisation import read_slots


def prefill_attention_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_q_start: Tensor,
    b_kv_len: Tensor,
    max_q_len: int,  # noqa: ARG001 - for kernels whose grid depends on it
    scale: float,
    out: Tensor,
    deterministic: bool = False,  # noqa: ARG001 - for kernels that divide contexts by how many there are
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Torch implementation: one fused attention call a request, so nothing is padded."""
    starts, kv_lens, rows = b_q_start.tolist(), b_kv_len.tolist(), b_row.tolist()
    for row, start, end, kv_len in zip(rows, starts, starts[1:], kv_lens, strict=False):
        q_len = end - start
        if q_len == 0 or kv_len == 0:
            continue
        first_seen = max(0, kv_len - q_len + 1 - window) if window else 0
        slots = slot_table[row, first_seen:kv_len]
        k, v = read_slots((k_cache, v_cache, scales), slots, q.dtype)
        if softcap or sinks is not None or slopes is not None:
            out[start:end] = attend(q[start:end], k, v, scale, window, softcap, sinks, slopes)
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

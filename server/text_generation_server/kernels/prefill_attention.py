"""Causal attention of new tokens over everything before them, for requests of any length side by side.

    out[t] = sum over c <= position(t) of softmax(scale * q[t] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads) (grouped queries, Ainslie et al., 2023).

Layouts: `q`, `out` `[tokens, heads, head_dim]`, tokens of request b at `b_q_start[b] : b_q_start[b + 1]`, no padding;
they are the last of its `b_kv_len[b]` tokens, so a prompt may come in pieces or continue a cached one. Position c of
request b lies in slot `slot_table[b_row[b], c]`. Caches `[slots, kv_heads, head_dim]`, already holding K and V of the
new tokens. `b_row` `[batch]` int64, `b_q_start` `[batch + 1]`, `b_kv_len` `[batch]`, `slot_table` int32.
A request without new tokens is allowed. Scores and sums are float32 on CUDA and CPU alike.

Called once a layer when a batch holds prompt tokens.
Floor: bytes of q, out, and K and V of each request once; operations 4 * heads * head_dim * (q, k pairs), bound by the
matrix rate from a few hundred tokens on.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ._register import register


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
) -> None:
    """Torch implementation on every device: one fused attention call a request, so nothing is padded."""
    starts, kv_lens, rows = b_q_start.tolist(), b_kv_len.tolist(), b_row.tolist()
    for row, start, end, kv_len in zip(rows, starts, starts[1:], kv_lens, strict=False):
        q_len = end - start
        if q_len == 0:
            continue
        slots = slot_table[row, :kv_len]
        k = k_cache.index_select(0, slots).transpose(0, 1)[None]
        v = v_cache.index_select(0, slots).transpose(0, 1)[None]
        mask = None
        if 1 < q_len < kv_len:
            mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
        attended = functional.scaled_dot_product_attention(
            q[start:end].transpose(0, 1)[None],
            k,
            v,
            attn_mask=mask,
            is_causal=q_len == kv_len > 1,
            scale=scale,
            enable_gqa=True,
        )
        out[start:end] = attended[0].transpose(0, 1)


prefill_attention = register(prefill_attention_torch, mutates=("out",))
"""prefill_attention(q, k_cache, v_cache, slot_table, b_row, b_q_start, b_kv_len, max_q_len, scale, out)"""

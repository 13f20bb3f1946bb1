"""Attention of one new token for each request over the whole context of that request.

    out[b] = sum over c < b_kv_len[b] of softmax(scale * q[b] . k[c]) * v[c]

Head h of q reads K and V of head h // (heads / kv_heads). A request with `b_kv_len` 0 (a padded row) gets zeros.

Layouts: `q`, `out` `[batch, heads, head_dim]`; position c of request b lies in slot `slot_table[b_row[b], c]`.
`slot_table` `[rows, positions]` int32, `b_row` `[batch]` int64, `b_kv_len` `[batch]` int32. Caches
`[slots, kv_heads, head_dim]`, already holding K and V of the new tokens. Entries of the table from `b_kv_len[b]` on
may be stale and are never followed: what another request left there must not reach this one, not even times zero.

Called once a layer in a decode step.
Bytes floor: sum(b_kv_len) * kv_heads * head_dim * 2 * element size (each K and V once).
"""

import torch
from torch import Tensor
from torch.nn import functional

from ._register import register

# Up to this many cache elements for the longest request, one padded call for the batch beats a call for each request:
# measured on CPU, a call costs about as much as copying 20,000 elements.
_PADDED_LIMIT = 16_384


def decode_attention_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
) -> None:
    """Torch implementation on every device. `max_kv_len` is at least the largest of `b_kv_len`."""
    batch, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    # The heads of a group are rows of one small matrix: K and V are read once for all of them.
    grouped = (batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attend = _padded if batch > 1 and max_kv_len * num_kv_heads * head_dim <= _PADDED_LIMIT else _one_by_one
    attend(q.view(grouped), k_cache, v_cache, slot_table, b_row, b_kv_len, max_kv_len, scale, out.view(grouped))


def _padded(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
) -> None:
    batch, num_kv_heads, _, head_dim = q.shape
    valid = torch.arange(max_kv_len, device=q.device) < b_kv_len[:, None]
    slots = slot_table[b_row, :max_kv_len]
    slots = torch.where(valid, slots, slots[:, :1]).flatten()
    context = (batch, max_kv_len, num_kv_heads, head_dim)
    k = k_cache.index_select(0, slots).view(context).transpose(1, 2)
    v = v_cache.index_select(0, slots).view(context).transpose(1, 2)
    mask = valid[:, None, None, :]
    out.copy_(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))


def _one_by_one(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,  # noqa: ARG001 - one signature for both
    scale: float,
    out: Tensor,
) -> None:
    for index, (row, kv_len) in enumerate(zip(b_row.tolist(), b_kv_len.tolist(), strict=True)):
        if kv_len == 0:
            out[index].zero_()
            continue
        slots = slot_table[row, :kv_len]
        k = k_cache.index_select(0, slots).transpose(0, 1)[None]
        v = v_cache.index_select(0, slots).transpose(0, 1)[None]
        out[index] = functional.scaled_dot_product_attention(q[index : index + 1], k, v, scale=scale)[0]


decode_attention = register(decode_attention_torch, mutates=("out",))
"""decode_attention(q, k_cache, v_cache, slot_table, b_row, b_kv_len, max_kv_len, scale, out)"""

"""Reference decode attention in torch: the CPU path, and what the kernels are compared with."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ._attention_torch import attend
from .kv_quantisation import Caches, read_slots

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
    deterministic: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    scales: Tensor | None = None,
    new_tokens: int = 1,  # noqa: ARG001 - what the Triton implementation may not prefetch
) -> None:
    """Torch implementation. `max_kv_len` is at least the largest of `b_kv_len`."""
    batch, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    caches = (k_cache, v_cache, scales)
    if softcap or sinks is not None or slopes is not None:
        for index, context in enumerate(_contexts(caches, slot_table, b_row, b_kv_len, window, q.dtype)):
            if context is None:
                out[index].zero_()
            else:
                out[index] = attend(q[index : index + 1], *context, scale, window, softcap, sinks, slopes)[0]
        return
    # The heads of a group are rows of one small matrix: K and V are read once for all of them.
    grouped = (batch, num_kv_heads, num_heads // num_kv_heads, -1)
    small = max_kv_len * num_kv_heads * head_dim <= _PADDED_LIMIT
    call = _padded if batch > 1 and small and not deterministic else _one_by_one
    call(q.view(grouped), caches, slot_table, b_row, b_kv_len, max_kv_len, scale, out.view(grouped), window)


def _padded(
    q: Tensor,
    caches: Caches,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,
    scale: float,
    out: Tensor,
    window: int,
) -> None:
    positions = torch.arange(max_kv_len, device=q.device)
    valid = positions < b_kv_len[:, None]
    if window:
        valid &= positions >= b_kv_len[:, None] - window
    slots = slot_table[b_row, :max_kv_len]
    slots = torch.where(valid, slots, slots[:, :1]).flatten()
    k, v = (
        each.view(q.shape[0], max_kv_len, *each.shape[1:]).transpose(1, 2)
        for each in read_slots(caches, slots, q.dtype)
    )
    mask = valid[:, None, None, :]
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    # A request of length 0 has followed a stale entry: what it read there may be NaN.
    out.copy_(attended.masked_fill((b_kv_len == 0)[:, None, None, None], 0.0))


def _one_by_one(
    q: Tensor,
    caches: Caches,
    slot_table: Tensor,
    b_row: Tensor,
    b_kv_len: Tensor,
    max_kv_len: int,  # noqa: ARG001 - one signature for both
    scale: float,
    out: Tensor,
    window: int,
) -> None:
    for index, context in enumerate(_contexts(caches, slot_table, b_row, b_kv_len, window, q.dtype)):
        if context is None:
            out[index].zero_()
            continue
        k, v = (each.transpose(0, 1)[None] for each in context)
        out[index] = functional.scaled_dot_product_attention(q[index : index + 1], k, v, scale=scale)[0]


def _contexts(
    caches: Caches, slot_table: Tensor, b_row: Tensor, b_kv_len: Tensor, window: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor] | None]:
    """K and V that the last position of each request sees, [seen, kv_heads, head_dim]; None where there are none."""
    for row, kv_len in zip(b_row.tolist(), b_kv_len.tolist(), strict=True):
        if kv_len == 0:
            yield None
            continue
        slots = slot_table[row, max(0, kv_len - window) if window else 0 : kv_len]
        yield read_slots(caches, slots, dtype)

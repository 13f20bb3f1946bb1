"""Reference attention in torch, step by step, for options that torch's fused attention lacks."""

import torch
from torch import Tensor

# Queries at a time: the scores of a whole long prompt would take more memory than its K and V.
_QUERIES = 256


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    slopes: Tensor | None,
) -> Tensor:
    """Causal attention of the last positions of one request with `AttentionOptions`: [q_len, heads, v_head_dim].

    `q` [q_len, heads, head_dim] belongs to the last positions of `k` [kv_len, kv_heads, head_dim] and `v`
    [kv_len, kv_heads, v_head_dim]. Computed and returned in float32.
    """
    kv_len, q_len = k.shape[0], q.shape[0]
    blocks: list[Tensor] = []
    for begin in range(0, q_len, _QUERIES):
        block = q[begin : begin + _QUERIES]
        end = kv_len - q_len + begin + block.shape[0]
        first = max(0, end - block.shape[0] + 1 - window) if window else 0
        blocks.append(_attend_block(block, k[first:end], v[first:end], scale, window, softcap, sinks, slopes))
    return torch.cat(blocks)


def _attend_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    slopes: Tensor | None,
) -> Tensor:
    (q_len, heads, head_dim), (kv_len, kv_heads, _) = q.shape, k.shape
    keys = torch.arange(kv_len, device=q.device)
    distances = keys - keys[kv_len - q_len :, None]
    grouped = q.float().reshape(q_len, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k.float()).flatten(0, 1) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        scores = scores + slopes[:, None, None] * distances
    unseen = distances > 0
    if window:
        unseen |= distances <= -window
    scores = scores.masked_fill(unseen, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(heads, q_len, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., :kv_len].unflatten(0, (kv_heads, -1))
    return torch.einsum("hgqk,khd->qhgd", weights, v.float()).flatten(1, 2)

"""Reference attention in torch, step by step, for options that torch's fused attention lacks."""

import torch
from torch import Tensor

from .attention_options import AttentionOptions

# Queries at a time: the scores of a whole long prompt would take more memory than its K and V.
_QUERIES = 256


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, options: AttentionOptions) -> Tensor:
    """Causal attention of the last positions of one request: [q_len, heads, v_head_dim].

    `q` [q_len, heads, head_dim] belongs to the last positions of `k` [kv_len, kv_heads, head_dim] and `v`
    [kv_len, kv_heads, v_head_dim]. Computed and returned in float32.
    """
    kv_len, q_len = k.shape[0], q.shape[0]
    blocks: list[Tensor] = []
    for begin in range(0, q_len, _QUERIES):
        block = q[begin : begin + _QUERIES]
        end = kv_len - q_len + begin + block.shape[0]
        first = max(0, end - block.shape[0] + 1 - options.window) if options.window else 0
        blocks.append(_attend_block(block, k[first:end], v[first:end], scale, options))
    return torch.cat(blocks)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, scale: float, options: AttentionOptions) -> Tensor:
    (q_len, heads, head_dim), (kv_len, kv_heads, _) = q.shape, k.shape
    keys = torch.arange(kv_len, device=q.device)
    distances = keys - keys[kv_len - q_len :, None]
    grouped = q.float().reshape(q_len, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k.float()).flatten(0, 1) * scale
    if options.softcap:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if options.slopes is not None:
        scores = scores + options.slopes[:, None, None] * distances
    unseen = distances > 0
    if options.window:
        unseen |= distances <= -options.window
    scores = scores.masked_fill(unseen, float("-inf"))
    if options.sinks is not None:
        scores = torch.cat((scores, options.sinks[:, None, None].expand(heads, q_len, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., :kv_len].unflatten(0, (kv_heads, -1))
    return torch.einsum("hgqk,khd->qhgd", weights, v.float()).flatten(1, 2)

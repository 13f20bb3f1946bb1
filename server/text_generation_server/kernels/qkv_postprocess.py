"""What happens between the fused QKV product and attention, in one pass.

    qkv += bias                                            (where there is one)
    q, k = rotate(q, position), rotate(k, position)        (rotary embedding, Su et al., 2021)
    k_cache[slot], v_cache[slot] = k, v

Rotation pairs element i of a head with element i + head_dim / 2 (the layout of Transformers checkpoints):

    first' = first * cos - second * sin,   second' = second * cos + first * sin

Layouts: `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]`, q heads, then k heads, then v heads; q is rotated in
place and attention reads it there, so no copy of it exists. `cos_sin` `[positions, head_dim]` float32, cosines in
the first half. `positions`, `slots` `[tokens]` int64. Caches `[slots, kv_heads, head_dim]`.
Rotation is computed in float32.

Called once a layer. Bytes floor: tokens * element size * 2 * (heads + 2 * kv_heads) * head_dim.
"""

import torch
from torch import Tensor

from ._register import register


def qkv_postprocess_torch(
    qkv: Tensor,
    bias: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """Torch implementation on every device."""
    _, num_kv_heads, head_dim = k_cache.shape
    if bias is not None:
        qkv.add_(bias)
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    q_and_k, k, v = heads[:, :-num_kv_heads], heads[:, -2 * num_kv_heads : -num_kv_heads], heads[:, -num_kv_heads:]

    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    first, second = q_and_k.float().chunk(2, dim=-1)
    q_and_k.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))

    k_cache.index_copy_(0, slots, k)
    v_cache.index_copy_(0, slots, v)


qkv_postprocess = register(qkv_postprocess_torch, mutates=("qkv", "k_cache", "v_cache"))
"""qkv_postprocess(qkv, bias, cos_sin, positions, slots, k_cache, v_cache)"""

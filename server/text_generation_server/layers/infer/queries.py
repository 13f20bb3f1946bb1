"""What some models do between the QKV projection and attention that `qkv_postprocess` does not: queries of layers that
read the cache of another one and normalised values (Gemma 4), and values smaller than keys (MiMo V2).
"""

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from ...config.spec import AttentionSpec
from .state import InferState


def rotate_queries(
    q: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float, cos_sin: Tensor, state: InferState
) -> None:
    """Adds the bias to `q` [T, heads * head_dim], normalises each head and rotates it, in place. `cos_sin` is that of
    `RopeTable`.
    """
    size = cos_sin.shape[1]
    if bias is not None:
        q.add_(bias)
    heads = q.view(-1, size)
    if norm is not None:
        kernels.rms_norm(heads, norm, eps, heads)
    cos, sin = cos_sin[state.positions][:, None].chunk(2, dim=-1)
    rotated = q.view(len(q), -1, size)
    first, second = rotated.float().chunk(2, dim=-1)
    rotated.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def normalise_values(v: Tensor, eps: float) -> None:
    """Divides each head of `v` [T, heads, head_dim] by the root of its mean square, in float32 and in place."""
    v.copy_(functional.rms_norm(v.float(), v.shape[-1:], eps=eps))


def widened_values(qkv: Tensor, bias: Tensor | None, spec: AttentionSpec, kv_heads: int) -> Tensor:
    """Returns `qkv` [T, ...] with the bias, and with values that are scaled and followed by zeros up to the size of a
    key: caches and kernels have one size for both, and attention reads zeros as zeros. With keys of 192
    and values of 128 that takes a fifth more room, and copies what the projection made.
    """
    if bias is not None:
        qkv.add_(bias)
    values = kv_heads * spec.value_dim
    before = qkv.shape[1] - values
    wide = qkv.new_zeros(len(qkv), before + kv_heads * spec.head_dim)
    wide[:, :before] = qkv[:, :before]
    heads = wide[:, before:].view(len(qkv), kv_heads, spec.head_dim)
    torch.mul(qkv[:, before:].view(len(qkv), kv_heads, -1), spec.value_scale, out=heads[..., : spec.value_dim])
    return wide

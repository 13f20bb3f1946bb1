"""What Gemma 4 does between the QKV projection and attention that `qkv_postprocess` does not: queries of layers that
read the cache of another one, and normalised values.
"""

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

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

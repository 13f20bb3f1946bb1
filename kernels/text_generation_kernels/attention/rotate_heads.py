"""Rotary embedding (Su et al., 2021) of heads whose angles are given, in place: that of vision towers.

    first, second = x * cos - y * sin, y * cos + x * sin

x and y are elements i and i + head_dim / 2 of a head. Every head of a token has the same angles. Computed in float32,
rounded once.
Layouts: `heads` `[tokens, heads, head_dim]`, head_dim even, unit stride in the last dimension, any other strides;
`cos`, `sin` float32 `[tokens, head_dim / 2]`, contiguous.

Called once a block, between the QKV GEMM and attention. Raises ValueError for layouts that the kernel does not read.
Bytes floor: 2 * tokens * heads * head_dim * element size (read and write heads); cos and sin are few.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton


@triton.jit
def rotate_heads_kernel(
    heads_ptr,  # [tokens, heads, 2 * half]
    cos_ptr,  # [tokens, half] float32
    sin_ptr,  # [tokens, half] float32
    heads,
    half,
    stride_token,
    stride_head,
    HEADS: tl.constexpr,  # power of two, at least heads
    HALF: tl.constexpr,  # power of two, at least half
    PDL: tl.constexpr,
):
    """One thread block rotates all heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, HALF)
    rows = tl.arange(0, HEADS)
    valid = (rows < heads)[:, None] & (pairs < half)[None, :]
    launch_dependents(PDL)
    wait_for_previous(PDL)
    cos = tl.load(cos_ptr + token * half + pairs, mask=pairs < half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + token * half + pairs, mask=pairs < half, other=0.0)[None, :]
    first_ptrs = heads_ptr + token * stride_token + rows[:, None] * stride_head + pairs[None, :]
    x = tl.load(first_ptrs, mask=valid, other=0.0).to(tl.float32)
    y = tl.load(first_ptrs + half, mask=valid, other=0.0).to(tl.float32)
    storage = heads_ptr.dtype.element_ty
    tl.store(first_ptrs, (x * cos - y * sin).to(storage), mask=valid)
    tl.store(first_ptrs + half, (y * cos + x * sin).to(storage), mask=valid)


_launch = Launcher(rotate_heads_kernel, writes=("heads",))


def rotate_heads_triton(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, count, head_dim = heads.shape
    half = head_dim // 2
    if not cos.shape == sin.shape == (tokens, half) or head_dim % 2:
        shapes = [tuple(tensor.shape) for tensor in (heads, cos, sin)]
        raise ValueError(f"rotate_heads: shapes of heads, cos, sin do not fit: {shapes}")
    if heads.stride(2) != 1 or not cos.is_contiguous() or not sin.is_contiguous():
        raise ValueError("rotate_heads: the last dimension of heads must have stride 1, cos and sin be contiguous")
    if heads.numel() == 0:
        return
    tile = {"HEADS": triton.next_power_of_2(count), "HALF": triton.next_power_of_2(half)}
    sizes = (count, half, heads.stride(0), heads.stride(1))
    _launch((tokens,), (heads, cos, sin), sizes, num_warps=4, **tile)


def rotate_heads_torch(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    x, y = heads.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    heads.copy_(torch.cat([x * cos - y * sin, y * cos + x * sin], dim=-1))


rotate_heads = register(rotate_heads_torch, mutates=("heads",), triton=rotate_heads_triton)

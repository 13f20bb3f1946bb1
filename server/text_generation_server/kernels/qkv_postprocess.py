"""What happens between the fused QKV product and attention, in one pass.

    qkv += bias                                            (where there is one)
    q, k = rotate(q, position), rotate(k, position)        (rotary embedding, Su et al., 2021)
    k_cache[slot], v_cache[slot] = k, v

Rotation pairs element i of a head with element i + head_dim / 2 (the layout of Transformers checkpoints):

    first' = first * cos - second * sin,   second' = second * cos + first * sin

Layouts: `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]`, q heads, then k heads, then v heads, any stride between
tokens; q is rotated in place and attention reads it there, so no copy of it exists. What is left in the places of k
and v is unspecified: read the caches. `cos_sin` `[positions, head_dim]` float32, cosines in the first half.
`positions`, `slots` `[tokens]` int64. Caches `[slots, kv_heads, head_dim]`, any strides but unit stride in the last
dimension. One floating type for `qkv`, `bias` and the caches. Rotation is computed in float32.
Tokens that share a slot leave any one of their keys and values there: only padding may do so.

Called once a layer. Bytes floor: tokens * element size * 2 * (heads + 2 * kv_heads) * head_dim.
Measured on an H200 in bfloat16 at 4096 tokens, head_dim 128, scattered slots: 84 % of copy bandwidth with 32 and 8
heads, 43 % with 4 and 1, where a block is half empty and a program too short; 1.6 and 1.5 us at one token
(benchmark/results/qkv_postprocess.json).
"""

# pyright: basic, reportArgumentType=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from ._config import nearest
from ._register import register


@triton.jit
def qkv_postprocess_kernel(
    qkv_ptr,  # [tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM], q updated in place
    bias_ptr,  # [(HEADS + 2 * KV_HEADS) * HEAD_DIM] or None
    cos_sin_ptr,  # [positions, HEAD_DIM] float32
    positions_ptr,  # [tokens] int64
    slots_ptr,  # [tokens] int64
    k_cache_ptr,  # [slots, KV_HEADS, HEAD_DIM]
    v_cache_ptr,  # [slots, KV_HEADS, HEAD_DIM]
    stride_qkv_token,
    stride_cos_sin_position,
    stride_k_cache_slot,
    stride_k_cache_head,
    stride_v_cache_slot,
    stride_v_cache_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,  # even
    BLOCK_HALF: tl.constexpr,  # power of two, at least HEAD_DIM / 2
    BLOCK_HEADS: tl.constexpr,  # power of two
):
    """One program handles BLOCK_HEADS heads of one token; q, k and v may meet in one block."""
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    pairs = tl.arange(0, BLOCK_HALF)[None, :]
    exists = pairs < HALF
    valid = (heads < HEADS + 2 * KV_HEADS) & exists

    places = heads * HEAD_DIM + pairs
    qkv = qkv_ptr + token * stride_qkv_token + places
    first = tl.load(qkv, mask=valid, other=0.0).to(tl.float32)
    second = tl.load(qkv + HALF, mask=valid, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        first += tl.load(bias_ptr + places, mask=valid, other=0.0).to(tl.float32)
        second += tl.load(bias_ptr + places + HALF, mask=valid, other=0.0).to(tl.float32)
    angles = cos_sin_ptr + position * stride_cos_sin_position + pairs
    cos = tl.load(angles, mask=exists, other=0.0)
    sin = tl.load(angles + HALF, mask=exists, other=0.0)

    turns = heads < HEADS + KV_HEADS
    storage: tl.constexpr = qkv_ptr.dtype.element_ty
    turned_first = tl.where(turns, first * cos - second * sin, first).to(storage)
    turned_second = tl.where(turns, second * cos + first * sin, second).to(storage)

    is_q = valid & (heads < HEADS)
    tl.store(qkv, turned_first, mask=is_q)
    tl.store(qkv + HALF, turned_second, mask=is_q)
    is_k = valid & (heads >= HEADS) & turns
    k = k_cache_ptr + slot * stride_k_cache_slot + (heads - HEADS) * stride_k_cache_head + pairs
    tl.store(k, turned_first, mask=is_k)
    tl.store(k + HALF, turned_second, mask=is_k)
    is_v = valid & (heads >= HEADS + KV_HEADS)
    v = v_cache_ptr + slot * stride_v_cache_slot + (heads - HEADS - KV_HEADS) * stride_v_cache_head + pairs
    tl.store(v, turned_first, mask=is_v)
    tl.store(v + HALF, turned_second, mask=is_v)


def _check(
    qkv: Tensor,
    bias: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> int:
    """Raises ValueError for layouts that the kernel does not read. Returns the number of query heads."""
    tokens, size = qkv.shape
    _, kv_heads, head_dim = k_cache.shape
    heads = size // head_dim - 2 * kv_heads
    if (
        head_dim % 2
        or heads < 1
        or size % head_dim
        or v_cache.shape != k_cache.shape
        or cos_sin.shape[1:] != (head_dim,)
        or not positions.shape == slots.shape == (tokens,)
        or (bias is not None and bias.shape != (size,))
    ):
        named = {"qkv": qkv, "bias": bias, "cos_sin": cos_sin, "positions": positions, "slots": slots}
        named |= {"k_cache": k_cache, "v_cache": v_cache}
        shapes = {name: tuple(tensor.shape) for name, tensor in named.items() if tensor is not None}
        raise ValueError(f"qkv_postprocess: shapes do not fit: {shapes}")
    tensors = (qkv, cos_sin, positions, slots, k_cache, v_cache, *(() if bias is None else (bias,)))
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("qkv_postprocess: the last dimension of every tensor must have stride 1")
    return heads


def qkv_postprocess_triton(
    qkv: Tensor,
    bias: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens = qkv.shape[0]
    if tokens == 0:
        return
    heads = _check(qkv, bias, cos_sin, positions, slots, k_cache, v_cache)
    _, kv_heads, head_dim = k_cache.shape
    block_half = triton.next_power_of_2(head_dim // 2)
    config = nearest("qkv_postprocess", half=block_half)
    qkv_postprocess_kernel[(tokens, triton.cdiv(heads + 2 * kv_heads, config["BLOCK_HEADS"]))](
        qkv,
        bias,
        cos_sin,
        positions,
        slots,
        k_cache,
        v_cache,
        qkv.stride(0),
        cos_sin.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        v_cache.stride(0),
        v_cache.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HALF=block_half,
        **config,
    )


def qkv_postprocess_torch(
    qkv: Tensor,
    bias: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
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


qkv_postprocess = register(qkv_postprocess_torch, mutates=("qkv", "k_cache", "v_cache"), triton=qkv_postprocess_triton)
"""qkv_postprocess(qkv, bias, cos_sin, positions, slots, k_cache, v_cache)"""

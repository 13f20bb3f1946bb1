"""Kernel between the GEMMs of latent attention and attention: RMSNorm, RoPE and the cache store, fused.

    cache[slot] = rms_norm(latent[:rank]) * weight, rotate(latent[rank:], position)
    queries[head, rank:] = rotate(q[head, -rope:], position)

The cache holds the normalised latent vector, from which keys and values of all heads follow, and one rotated key of
`rope` elements that all heads share (DeepSeek-V2, 2024). The first `rank` columns of `queries` are not touched: the
absorbed rest of `q` goes there (`layers/infer/latent_attention.py`).

RoPE pairs element i with element i + rope / 2, as in `qkv_postprocess`; rows of checkpoints that pair neighbours are
permuted when they are loaded.

Layouts: `latent` `[tokens, rank + rope]`, `q` `[tokens, heads, any + rope]`, `queries` `[tokens, heads, rank + rope]`,
`cache` `[slots, 1, rank + rope]`, any strides but unit stride in the last dimension; `weight` `[rank]`; angles, of
`rope` elements and contiguous, and slots are those of the step (`NewTokens`). One floating type for all but the angles.
Computed in float32; the normalised value is rounded before its multiplication by the weight, as in `rms_norm`.

Called once a layer. Bytes floor: tokens * element size * 2 * (rank + rope + heads * rope).
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..norm.rms_norm import normalise
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton
from .new_tokens import NewTokens

_HEADS = 16
"""Heads that one thread block rotates."""


@triton.jit
def rotate(
    source_ptr,  # [M, 1], the first element of each
    target_ptr,  # [M, 1]
    cos_sin_row_ptr,
    exists,  # [M, 1]
    ROPE: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """RoPE of M vectors of ROPE elements at one position."""
    HALF: tl.constexpr = ROPE // 2
    pairs = tl.arange(0, BLOCK_P)[None, :]
    exists = exists & (pairs < HALF)
    cos = tl.load(cos_sin_row_ptr + pairs, mask=pairs < HALF, other=0.0)
    sin = tl.load(cos_sin_row_ptr + HALF + pairs, mask=pairs < HALF, other=0.0)
    first = tl.load(source_ptr + pairs, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(source_ptr + HALF + pairs, mask=exists, other=0.0).to(tl.float32)
    storage = target_ptr.dtype.element_ty
    tl.store(target_ptr + pairs, (first * cos - second * sin).to(storage), mask=exists)
    tl.store(target_ptr + HALF + pairs, (second * cos + first * sin).to(storage), mask=exists)


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def latent_postprocess_kernel(
    latent_ptr,  # [tokens, RANK + ROPE]
    weight_ptr,  # [RANK]
    cos_sin_ptr,  # [positions, ROPE] float32
    positions_ptr,  # [tokens]
    slots_ptr,  # [tokens]
    q_ptr,  # [tokens, HEADS, Q_DIM]
    queries_ptr,  # [tokens, HEADS, RANK + ROPE]
    cache_ptr,  # [slots, RANK + ROPE]
    stride_latent,
    stride_q_token,
    stride_q_head,
    stride_queries_token,
    stride_queries_head,
    stride_slot,
    eps,
    HEADS: tl.constexpr,
    Q_DIM: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,  # power of two, at least RANK
    ROPE: tl.constexpr,
    BLOCK_P: tl.constexpr,  # power of two, at least ROPE / 2
    BLOCK_H: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first thread block of a token writes the cache, the others rotate BLOCK_H heads each."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    cos_sin_row_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * ROPE
    if block == 0:
        slot_ptr = cache_ptr + tl.load(slots_ptr + token) * stride_slot
        elements = tl.arange(0, BLOCK_R)
        inside = elements < RANK
        latent_row_ptr = latent_ptr + token * stride_latent
        x = tl.load(latent_row_ptr + elements, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + elements, mask=inside, other=0.0)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / RANK + eps)
        normalised = (x * scale).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
        tl.store(slot_ptr + elements, normalised.to(cache_ptr.dtype.element_ty), mask=inside)
        one = tl.zeros([1, 1], dtype=tl.int32)
        rotate(latent_row_ptr + RANK + one, slot_ptr + RANK + one, cos_sin_row_ptr, one == 0, ROPE, BLOCK_P)
        return
    heads = (block - 1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    source_ptr = q_ptr + token * stride_q_token + heads * stride_q_head + (Q_DIM - ROPE)
    target_ptr = queries_ptr + token * stride_queries_token + heads * stride_queries_head + RANK
    rotate(source_ptr, target_ptr, cos_sin_row_ptr, heads < HEADS, ROPE, BLOCK_P)


_launch = Launcher(latent_postprocess_kernel, writes=("queries", "cache:newest"))


def latent_postprocess_triton(
    latent: Tensor, weight: Tensor, eps: float, tokens: NewTokens, q: Tensor, queries: Tensor, cache: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    cos_sin = tokens.cos_sin
    (count, heads, q_dim), rank, rope = q.shape, weight.shape[0], cos_sin.shape[1]
    if not (latent.shape[1] == queries.shape[2] == cache.shape[2] == rank + rope) or cache.shape[1] != 1:
        shapes = [tuple(each.shape) for each in (latent, weight, cos_sin, q, queries, cache)]
        raise ValueError(f"latent_postprocess: shapes of latent, weight, cos_sin, q, queries, cache differ: {shapes}")
    if any(each.stride(-1) != 1 for each in (latent, weight, q, queries, cache)) or not cos_sin.is_contiguous():
        raise ValueError("latent_postprocess: the last dimension of every tensor must have stride 1")
    if count == 0:
        return
    _launch(
        (count, 1 + triton.cdiv(heads, _HEADS)),
        (latent, weight, cos_sin, tokens.positions, tokens.slots, q, queries, cache),
        (latent.stride(0), *q.stride()[:2], *queries.stride()[:2], cache.stride(0)),
        (float(eps),),
        HEADS=heads,
        Q_DIM=q_dim,
        RANK=rank,
        BLOCK_R=triton.next_power_of_2(rank),
        ROPE=rope,
        BLOCK_P=triton.next_power_of_2(rope // 2),
        BLOCK_H=_HEADS,
        num_warps=4,
    )


def latent_postprocess_torch(
    latent: Tensor, weight: Tensor, eps: float, tokens: NewTokens, q: Tensor, queries: Tensor, cache: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    rank, slots = weight.shape[0], tokens.slots
    rows = tokens.cos_sin[tokens.positions]
    normalised = torch.empty_like(latent[:, :rank])
    normalise(latent[:, :rank], weight, eps, normalised)
    cache[slots, 0, :rank] = normalised
    cache[slots, 0, rank:] = rotated(latent[:, None, rank:], rows)[:, 0]
    queries[..., rank:] = rotated(q[..., -rows.shape[1] :], rows)


def rotated(x: Tensor, rows: Tensor) -> Tensor:
    """RoPE of `x` [tokens, heads, rope] with `rows` [tokens, rope] of `cos_sin`."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rows[:, None].chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


latent_postprocess = register(latent_postprocess_torch, mutates=("queries", "cache"), triton=latent_postprocess_triton)

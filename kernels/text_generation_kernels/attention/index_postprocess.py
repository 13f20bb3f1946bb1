"""Kernel between the GEMMs of an indexer and its scores: norms and RoPE of keys and queries, and the cache store.

    cache[slot] = rotate(norm(keys), position)
    q[head] = rotate(norm(q[head]), position)

The norm of keys is a layer norm, or an RMS norm where it has no bias; that of queries is an RMS norm, where there is
one (`IndexNorms`). RoPE rotates the first `rope` elements of a key and of each query, and pairs element i with element
i + rope / 2; rows of checkpoints that pair neighbours are permuted when they are loaded. The rest stays as it is.

Layouts: `keys` `[tokens, size]`, `q` `[tokens, heads, size]`, changed in place, `cache` `[slots, 1, size]`, any strides
but unit stride in the last dimension; angles of `rope` elements, contiguous, and slots are those of the step
(`NewTokens`). One floating type for all but angles and norms. Computed in float32; what is normalised is rounded before
its rotation, as by a norm of its own.

Called once in a layer with an indexer. Bytes floor: tokens * element size * 2 * (size + heads * rope), with norms of
queries tokens * element size * 2 * (1 + heads) * size. Not measured on a device yet.
"""

# pyright: basic, reportArgumentType=false
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.shapes import shapes_error
from ..runtime.triton import tl, triton
from .latent_postprocess import rotate, rotated
from .new_tokens import NewTokens

_HEADS = 16
"""Heads that one thread block rotates."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexNorms:
    """The norms of an indexer. The model owns all tensors."""

    key: Tensor
    """[size], the factor of normalised keys."""
    key_bias: Tensor | None
    """[size]; None: the norm is an RMS norm."""
    query: Tensor | None
    """[size], the factor of normalised queries; None: they have no norm."""
    eps: float


@triton.jit
def _normalise_and_rotate(
    source_ptr,  # [M, 1], the first element of each
    target_ptr,  # [M, 1]
    cos_sin_row_ptr,
    weight_ptr,  # [SIZE]
    bias_ptr,  # [SIZE] or None
    exists,  # [M, 1]
    eps,
    SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Norm, and RoPE of the first ROPE elements, of M vectors at one position. A vector may be written in place."""
    storage = target_ptr.dtype.element_ty
    elements = tl.arange(0, BLOCK_D)[None, :]
    inside = exists & (elements < SIZE)
    x = tl.load(source_ptr + elements, mask=inside, other=0.0).to(tl.float32)
    mean = tl.zeros_like(tl.sum(x, axis=1))
    if bias_ptr is not None:
        mean = tl.sum(x, axis=1) / SIZE
    centred = tl.where(inside, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / SIZE + eps)[:, None]
    rest = _scaled(centred * scale, weight_ptr, bias_ptr, elements, elements < SIZE, storage)
    tl.store(target_ptr + elements, rest.to(storage), mask=inside & (elements >= ROPE))

    HALF: tl.constexpr = ROPE // 2
    pairs = tl.arange(0, BLOCK_P)[None, :]
    cos = tl.load(cos_sin_row_ptr + pairs, mask=pairs < HALF, other=0.0)
    sin = tl.load(cos_sin_row_ptr + HALF + pairs, mask=pairs < HALF, other=0.0)
    rotated = exists & (pairs < HALF)
    first = tl.load(source_ptr + pairs, mask=rotated, other=0.0).to(tl.float32)
    second = tl.load(source_ptr + HALF + pairs, mask=rotated, other=0.0).to(tl.float32)
    first = _scaled((first - mean[:, None]) * scale, weight_ptr, bias_ptr, pairs, pairs < HALF, storage)
    second = _scaled((second - mean[:, None]) * scale, weight_ptr, bias_ptr, HALF + pairs, pairs < HALF, storage)
    # Every element was read before the first is written: its vector's scale needs them all.
    tl.store(target_ptr + pairs, (first * cos - second * sin).to(storage), mask=rotated)
    tl.store(target_ptr + HALF + pairs, (second * cos + first * sin).to(storage), mask=rotated)


@triton.jit
def _scaled(x, weight_ptr, bias_ptr, elements, valid, storage: tl.constexpr):
    """Multiplies by weights and adds biases, rounded, float32."""
    x *= tl.load(weight_ptr + elements, mask=valid, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + elements, mask=valid, other=0.0).to(tl.float32)
    return x.to(storage).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=["keys_ptr", "q_ptr", "positions_ptr", "slots_ptr"])
def index_postprocess_kernel(
    keys_ptr,  # [tokens, SIZE]
    key_norm_ptr,  # [SIZE]
    key_bias_ptr,  # [SIZE] or None
    query_norm_ptr,  # [SIZE] or None
    cos_sin_ptr,  # [positions, ROPE] float32
    positions_ptr,  # [tokens]
    slots_ptr,  # [tokens]
    q_ptr,  # [tokens, HEADS, SIZE]
    cache_ptr,  # [slots, SIZE]
    stride_keys,
    stride_q_token,
    stride_q_head,
    stride_slot,
    eps,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two, at least SIZE
    ROPE: tl.constexpr,
    BLOCK_P: tl.constexpr,  # power of two, at least ROPE / 2
    BLOCK_H: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first thread block of a token writes the cache, the others change BLOCK_H heads each."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    cos_sin_row_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * ROPE
    if block == 0:
        one = tl.zeros([1, 1], dtype=tl.int32)
        slot_ptr = cache_ptr + tl.load(slots_ptr + token) * stride_slot
        _normalise_and_rotate(
            keys_ptr + token * stride_keys + one, slot_ptr + one, cos_sin_row_ptr, key_norm_ptr, key_bias_ptr,
            one == 0, eps, SIZE, BLOCK_D, ROPE, BLOCK_P,
        )  # fmt: skip
        return
    heads = (block - 1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    head_ptr = q_ptr + token * stride_q_token + heads * stride_q_head
    if query_norm_ptr is None:
        rotate(head_ptr, head_ptr, cos_sin_row_ptr, heads < HEADS, ROPE, BLOCK_P)
    else:
        _normalise_and_rotate(
            head_ptr, head_ptr, cos_sin_row_ptr, query_norm_ptr, None, heads < HEADS, eps, SIZE, BLOCK_D, ROPE, BLOCK_P
        )


_launch = Launcher(index_postprocess_kernel, writes=("q", "cache:newest"))


def index_postprocess_triton(keys: Tensor, norms: IndexNorms, tokens: NewTokens, q: Tensor, cache: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    cos_sin, weights = tokens.cos_sin, [each for each in (norms.key, norms.key_bias, norms.query) if each is not None]
    (count, heads, size), rope = q.shape, cos_sin.shape[1]
    if not keys.shape[1] == cache.shape[2] == size >= rope or any(each.shape != (size,) for each in weights):
        raise shapes_error("index_postprocess", keys=keys, norm=norms.key, cos_sin=cos_sin, q=q, cache=cache)
    if any(each.stride(-1) != 1 for each in (keys, *weights, q, cache)) or not cos_sin.is_contiguous():
        raise ValueError("index_postprocess: the last dimension of every tensor must have stride 1")
    if count == 0:
        return
    _launch(
        (count, 1 + triton.cdiv(heads, _HEADS)),
        (keys, norms.key, norms.key_bias, norms.query, cos_sin, tokens.positions, tokens.slots, q, cache),
        (keys.stride(0), *q.stride()[:2], cache.stride(0)),
        (float(norms.eps),),
        HEADS=heads,
        SIZE=size,
        BLOCK_D=triton.next_power_of_2(size),
        ROPE=rope,
        BLOCK_P=triton.next_power_of_2(rope // 2),
        BLOCK_H=min(_HEADS, triton.next_power_of_2(heads)),
        num_warps=4,
    )


def index_postprocess_torch(keys: Tensor, norms: IndexNorms, tokens: NewTokens, q: Tensor, cache: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    rows = tokens.cos_sin[tokens.positions]
    cache[tokens.slots] = _rotated(_normalised(keys, norms.key, norms.key_bias, norms.eps)[:, None], rows)
    q.copy_(_rotated(q if norms.query is None else _normalised(q, norms.query, None, norms.eps), rows))


def _normalised(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    wide = x.float()
    if bias is not None:
        return functional.layer_norm(wide, weight.shape, weight.float(), bias.float(), eps).to(x.dtype)
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)


def _rotated(x: Tensor, rows: Tensor) -> Tensor:
    rope = rows.shape[1]
    return torch.cat((rotated(x[..., :rope], rows), x[..., rope:]), dim=-1)


index_postprocess = register(index_postprocess_torch, mutates=("q", "cache"), triton=index_postprocess_triton)

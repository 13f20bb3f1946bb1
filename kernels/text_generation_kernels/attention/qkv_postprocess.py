"""Kernel between the QKV GEMM and attention: bias, per-head RMSNorm, RoPE and the KV-cache store, fused.

    qkv += bias                                            (where there is one)
    q, k = rms_norm(q) * q_norm, rms_norm(k) * k_norm      (where there are both; over each head, as Qwen3 does)
    q, k = rotate(q, position), rotate(k, position)        (rotary embedding, Su et al., 2021)
                                                           (`norm_after_rope`: these two the other way round)
    k_cache[slot], v_cache[slot] = k, v

RoPE pairs element i of a head with element i + head_dim / 2 (the layout of Transformers checkpoints):

    first' = first * cos - second * sin,   second' = second * cos + first * sin

Layouts: `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]`, q heads, then k heads, then v heads, any stride between
tokens. q is rotated in place, and attention reads it there; the places of k and v are unspecified afterwards. `qkv` may
also be float32 split-K partials `[partials, tokens, ...]` (`linear_split_k`): they are added up in their order and
rounded to the type of `q_out` `[tokens, heads * head_dim]`, which then receives q.

`q_norm`, `k_norm` `[head_dim]`, or `[heads, head_dim]` and `[kv_heads, head_dim]` where each head has its own weights,
rounded as in `rms_norm`; they may be float32. `cos_sin` `[positions, head_dim]` float32, cosines in the first half;
elements that are not rotated have cosine 1 and sine 0 (partial RoPE, layers without any). Rows of checkpoints that pair
neighbours are permuted when they are loaded.

`positions`, `slots` `[tokens]` int64. Caches `[slots, kv_heads, head_dim]`, any strides but unit stride in the last
dimension; of 8-bit codes (`kv_quantisation.py`) `scales` `[slots, kv_heads, 2]` are written too, or, with
`scales_given`, read. One floating type for `qkv`, `bias`, norms and caches of values. RoPE is computed in float32. Of
tokens that share a slot any one's keys and values stay there: only padding may share.

Called once a layer. Bytes floor: tokens * element size * 2 * (heads + 2 * kv_heads) * head_dim. On an H200 in bfloat16
at 4,096 tokens with 32 and 8 heads of 128: 87 % of copy bandwidth. Measurements:
docs/lab/2026-11-norms-and-activations.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..norm.rms_norm import normalise
from ..runtime.launch import Launcher
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.shapes import shapes_error
from ..runtime.triton import triton
from ._qkv_postprocess_kernel import qkv_postprocess_kernel
from .kv_quantisation import as_bytes, check_codes, format_of, quantise

_launch = Launcher(
    qkv_postprocess_kernel,
    writes=("q", "k_cache:newest", "v_cache:newest", "scales:newest"),
    reads_early=("positions", "slots", "cos_sin"),
)


def check_qkv(
    qkv: Tensor,
    bias: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    scales: Tensor | None,
    q_out: Tensor | None = None,
) -> int:
    """Raises ValueError for layouts that the kernel does not read. Returns the number of query heads."""
    tokens, size = qkv.shape[-2:]
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
        or (q_norm is None) != (k_norm is None)
        or (q_norm is not None and k_norm is not None and not _norms_fit(q_norm, k_norm, heads, kv_heads, head_dim))
    ):
        named = {"qkv": qkv, "bias": bias, "q_norm": q_norm, "k_norm": k_norm, "cos_sin": cos_sin}
        named |= {"positions": positions, "slots": slots, "k_cache": k_cache, "v_cache": v_cache}
        raise shapes_error("qkv_postprocess", **named)
    tensors = (qkv, bias, q_norm, k_norm, cos_sin, positions, slots, k_cache, v_cache, q_out)
    # The stride of a single element is arbitrary.
    if any(tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("qkv_postprocess: the last dimension of every tensor must have stride 1")
    if (qkv.dim() == 3) != (q_out is not None) or (q_out is not None and q_out.shape != (tokens, heads * head_dim)):
        raise ValueError(
            f"qkv_postprocess: q_out must be [{tokens}, {heads * head_dim}] for split-K partials, else None"
        )
    check_codes("qkv_postprocess", k_cache, v_cache, scales)
    return heads


def _norms_fit(q_norm: Tensor, k_norm: Tensor, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether both have one type, and weights that heads share or weights of each head."""
    shapes = (tuple(q_norm.shape), tuple(k_norm.shape))
    shared, of_each_head = ((head_dim,), (head_dim,)), ((heads, head_dim), (kv_heads, head_dim))
    return (
        shapes in (shared, of_each_head)
        and q_norm.dtype == k_norm.dtype
        and q_norm.is_contiguous()
        and k_norm.is_contiguous()
    )


def qkv_postprocess_triton(
    qkv: Tensor,
    bias: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    norm_eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norm_after_rope: bool = False,
    scales: Tensor | None = None,
    scales_given: bool = False,
    q_out: Tensor | None = None,
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read.

    `cos_sin`, `positions` and `slots` are read while the previous kernel may still run, see `decode_attention`.
    """
    tokens = qkv.shape[-2]
    if tokens == 0:
        return
    heads = check_qkv(qkv, bias, q_norm, k_norm, cos_sin, positions, slots, k_cache, v_cache, scales, q_out)
    _, kv_heads, head_dim = k_cache.shape
    block_half = triton.next_power_of_2(head_dim // 2)
    config = nearest("qkv_postprocess", half=block_half)
    scale_strides = (0, 0) if scales is None else scales.stride()[:2]
    q = qkv if q_out is None else q_out
    partials = len(qkv) if q_out is not None else 0
    _launch(
        (tokens, triton.cdiv(heads + 2 * kv_heads, config["BLOCK_HEADS"])),
        (qkv, q, bias, q_norm, k_norm, cos_sin, positions, slots, as_bytes(k_cache), as_bytes(v_cache), scales),
        (
            qkv.stride(0) if partials else 0,
            qkv.stride(-2),
            q.stride(0),
            cos_sin.stride(0),
            *k_cache.stride()[:2],
            *v_cache.stride()[:2],
            *scale_strides,
        ),
        (norm_eps,),
        PARTIALS=partials,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HALF=block_half,
        NORM_OF_EACH_HEAD=q_norm is not None and q_norm.dim() == 2,
        NORM_AFTER_ROPE=norm_after_rope,
        FORMAT=format_of(k_cache),
        SCALES_GIVEN=scales_given,
        **config,
    )


def qkv_postprocess_torch(
    qkv: Tensor,
    bias: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    norm_eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norm_after_rope: bool = False,
    scales: Tensor | None = None,
    scales_given: bool = False,
    q_out: Tensor | None = None,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    _, num_kv_heads, head_dim = k_cache.shape
    if q_out is not None:
        qkv = qkv.sum(0).to(q_out.dtype)
    if bias is not None:
        qkv.add_(bias)
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    q, k, v = heads.split((heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads), dim=1)
    if norm_after_rope:
        _rotate(heads[:, :-num_kv_heads], cos_sin, positions)
    if q_norm is not None and k_norm is not None:
        normalise(q, q_norm, norm_eps, q)
        normalise(k, k_norm, norm_eps, k)
    if not norm_after_rope:
        _rotate(heads[:, :-num_kv_heads], cos_sin, positions)
    if q_out is not None:
        q_out.view(q.shape).copy_(q)
    if scales is None:
        k_cache.index_copy_(0, slots, k)
        v_cache.index_copy_(0, slots, v)
        return
    given = scales.index_select(0, slots) if scales_given else None
    for place, (heads, cache) in enumerate(((k, k_cache), (v, v_cache))):
        codes, measured = quantise(heads, cache.dtype, None if given is None else given[..., place])
        as_bytes(cache).index_copy_(0, slots, as_bytes(codes))
        if given is None:
            scales[..., place].index_copy_(0, slots, measured)


def _rotate(q_and_k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """RoPE of `q_and_k` [tokens, heads, head_dim] in place."""
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    first, second = q_and_k.float().chunk(2, dim=-1)
    rotated = (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
    q_and_k.copy_(torch.cat(rotated, dim=-1))


qkv_postprocess = register(
    qkv_postprocess_torch, mutates=("qkv", "k_cache", "v_cache", "scales", "q_out"), triton=qkv_postprocess_triton
)

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

Bias and norms are those of the layer (`QkvPrologue`), norms rounded as in `rms_norm`. Rows of checkpoints that pair
neighbours are permuted when they are loaded. Angles and slots are those of the step (`NewTokens`). Keys and values have
one head size; of codes (`kv_quantisation.py`) scales are written too, or, where given, read. One floating type
for `qkv`, bias, norms and caches of values. RoPE is computed in float32.

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
from ._kv_conversion import INT4
from ._qkv_postprocess_kernel import qkv_postprocess_kernel
from .kv_cache import KvCache
from .kv_quantisation import as_bytes, as_words, check_codes, format_of, head_dim_of, quantise, split_scales
from .new_tokens import NewTokens
from .qkv_prologue import QkvPrologue

_launch = Launcher(
    qkv_postprocess_kernel,
    writes=("q", "k_cache:newest", "v_cache:newest", "scales:newest"),
    reads_early=("positions", "slots", "cos_sin"),
)


def check_qkv(
    qkv: Tensor, prologue: QkvPrologue, tokens: NewTokens, cache: KvCache, q_out: Tensor | None = None
) -> int:
    """Raises ValueError for layouts that the kernel does not read. Returns the number of query heads."""
    bias, q_norm, k_norm = prologue.bias, prologue.q_norm, prologue.k_norm
    cos_sin, positions, slots = tokens.cos_sin, tokens.positions, tokens.slots
    count, size = qkv.shape[-2:]
    kv_heads, head_dim = cache.k.shape[1], head_dim_of(cache.k)
    heads = size // head_dim - 2 * kv_heads
    if (
        head_dim % 2
        or heads < 1
        or size % head_dim
        or cache.v.shape != cache.k.shape
        or cos_sin.shape[1:] != (head_dim,)
        or not positions.shape == slots.shape == (count,)
        or (bias is not None and bias.shape != (size,))
        or (q_norm is None) != (k_norm is None)
        or (q_norm is not None and k_norm is not None and not _norms_fit(q_norm, k_norm, heads, kv_heads, head_dim))
    ):
        named = {"qkv": qkv, "bias": bias, "q_norm": q_norm, "k_norm": k_norm, "cos_sin": cos_sin}
        named |= {"positions": positions, "slots": slots, "k_cache": cache.k, "v_cache": cache.v}
        raise shapes_error("qkv_postprocess", **named)
    tensors = (qkv, bias, q_norm, k_norm, cos_sin, positions, slots, cache.k, cache.v, q_out)
    # The stride of a single element is arbitrary.
    if any(tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("qkv_postprocess: the last dimension of every tensor must have stride 1")
    if (qkv.dim() == 3) != (q_out is not None) or (q_out is not None and q_out.shape != (count, heads * head_dim)):
        raise ValueError(
            f"qkv_postprocess: q_out must be [{count}, {heads * head_dim}] for split-K partials, else None"
        )
    check_codes("qkv_postprocess", cache)
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
    qkv: Tensor, prologue: QkvPrologue, tokens: NewTokens, cache: KvCache, q_out: Tensor | None = None
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read.

    `tokens` are read while the previous kernel may still run, see `decode_attention`.
    """
    count = qkv.shape[-2]
    if count == 0:
        return
    heads = check_qkv(qkv, prologue, tokens, cache, q_out)
    kv_heads, head_dim, format = cache.k.shape[1], head_dim_of(cache.k), format_of(cache.k)
    cos_sin, scales, q_norm = tokens.cos_sin, cache.scales, prologue.q_norm
    k_cache, v_cache = (as_words(each) if format == INT4 else as_bytes(each) for each in (cache.k, cache.v))
    block_half = triton.next_power_of_2(head_dim // 2)
    config = nearest("qkv_postprocess", half=block_half)
    scale_strides = (0, 0) if scales is None else scales.stride()[:2]
    q = qkv if q_out is None else q_out
    partials = len(qkv) if q_out is not None else 0
    _launch(
        (count, triton.cdiv(heads + 2 * kv_heads, config["BLOCK_HEADS"])),
        (
            qkv, q, prologue.bias, q_norm, prologue.k_norm, cos_sin, tokens.positions, tokens.slots, k_cache, v_cache,
            scales,
        ),
        (
            qkv.stride(0) if partials else 0,
            qkv.stride(-2),
            q.stride(0),
            cos_sin.stride(0),
            *k_cache.stride()[:2],
            *v_cache.stride()[:2],
            *scale_strides,
        ),
        (prologue.norm_eps,),
        PARTIALS=partials,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HALF=block_half,
        NORM_OF_EACH_HEAD=q_norm is not None and q_norm.dim() == 2,
        NORM_AFTER_ROPE=prologue.norm_after_rope,
        FORMAT=format,
        SCALES_GIVEN=cache.scales_given,
        **config,
    )  # fmt: skip


def qkv_postprocess_torch(
    qkv: Tensor, prologue: QkvPrologue, tokens: NewTokens, cache: KvCache, q_out: Tensor | None = None
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    num_kv_heads, head_dim = cache.k.shape[1], head_dim_of(cache.k)
    if q_out is not None:
        qkv = qkv.sum(0).to(q_out.dtype)
    if prologue.bias is not None:
        qkv.add_(prologue.bias)
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    q, k, v = heads.split((heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads), dim=1)
    if prologue.norm_after_rope:
        _rotate(heads[:, :-num_kv_heads], tokens)
    if prologue.q_norm is not None and prologue.k_norm is not None:
        normalise(q, prologue.q_norm, prologue.norm_eps, q)
        normalise(k, prologue.k_norm, prologue.norm_eps, k)
    if not prologue.norm_after_rope:
        _rotate(heads[:, :-num_kv_heads], tokens)
    if q_out is not None:
        q_out.view(q.shape).copy_(q)
    _store(k, v, tokens.slots, cache)


def _store(k: Tensor, v: Tensor, slots: Tensor, cache: KvCache) -> None:
    """Writes keys and values, as codes where the cache holds them."""
    scales = cache.scales
    if scales is None:
        cache.k.index_copy_(0, slots, k)
        cache.v.index_copy_(0, slots, v)
        return
    given = split_scales(cache, scales.index_select(0, slots)) if cache.scales_given else (None, None)
    of_all = split_scales(cache, scales)
    for heads, stored, known, of_stored in zip((k, v), (cache.k, cache.v), given, of_all, strict=True):
        codes, measured = quantise(heads, stored.dtype, known)
        as_bytes(stored).index_copy_(0, slots, as_bytes(codes))
        if known is None:
            of_stored.index_copy_(0, slots, measured)


def _rotate(q_and_k: Tensor, tokens: NewTokens) -> None:
    """RoPE of `q_and_k` [tokens, heads, head_dim] in place."""
    cos, sin = tokens.cos_sin.index_select(0, tokens.positions).unsqueeze(1).chunk(2, dim=-1)
    first, second = q_and_k.float().chunk(2, dim=-1)
    rotated = (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
    q_and_k.copy_(torch.cat(rotated, dim=-1))


qkv_postprocess = register(
    qkv_postprocess_torch,
    mutates=("qkv", "cache_k", "cache_v", "cache_scales", "q_out"),
    triton=qkv_postprocess_triton,
)

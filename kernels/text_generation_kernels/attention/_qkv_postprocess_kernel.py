"""Kernel of `qkv_postprocess`: one thread block has BLOCK_HEADS heads of one token."""

# pyright: basic, reportArgumentType=false
from ..runtime.launch import launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._kv_conversion import INT4, code_of_amax, encode, round_up
from ._kv_groups import code_elements, group_count, pack_heads
from .kv_quantisation import SMALLEST_AMAX

_INT4 = tl.constexpr(INT4)
_SMALLEST_AMAX = tl.constexpr(SMALLEST_AMAX)


@triton.jit
def _norm_weights(
    heads,  # [BLOCK_HEADS, 1]
    elements,  # [1, BLOCK_HALF]
    exists,  # [1, BLOCK_HALF]
    q_norm_ptr,
    k_norm_ptr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NORM_OF_EACH_HEAD: tl.constexpr,
):
    """Norm weights of `elements` for each head, [BLOCK_HEADS, BLOCK_HALF] float32."""
    is_q = heads < HEADS
    if NORM_OF_EACH_HEAD:
        is_k = (heads >= HEADS) & (heads < HEADS + KV_HEADS)
        q_weight = tl.load(q_norm_ptr + heads * HEAD_DIM + elements, mask=exists & is_q, other=0.0)
        k_weight = tl.load(k_norm_ptr + (heads - HEADS) * HEAD_DIM + elements, mask=exists & is_k, other=0.0)
    else:
        q_weight = tl.load(q_norm_ptr + elements, mask=exists, other=0.0)
        k_weight = tl.load(k_norm_ptr + elements, mask=exists, other=0.0)
    return tl.where(is_q, q_weight.to(tl.float32), k_weight.to(tl.float32))


@triton.jit
def _normalise_heads(
    first,  # [BLOCK_HEADS, BLOCK_HALF] float32, zero where there is no element
    second,
    heads,  # [BLOCK_HEADS, 1]
    pairs,  # [1, BLOCK_HALF]
    q_norm_ptr,
    k_norm_ptr,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NORM_OF_EACH_HEAD: tl.constexpr,
    STORAGE: tl.constexpr,
):
    """RMSNorm of both halves of each head, rounded as by `rms_norm`."""
    HALF: tl.constexpr = HEAD_DIM // 2
    WEIGHT: tl.constexpr = q_norm_ptr.dtype.element_ty
    exists = pairs < HALF
    squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
    scale = tl.rsqrt(squares / HEAD_DIM + eps)
    weight = _norm_weights(heads, pairs, exists, q_norm_ptr, k_norm_ptr, HEADS, KV_HEADS, HEAD_DIM, NORM_OF_EACH_HEAD)
    first = ((first * scale).to(WEIGHT).to(tl.float32) * weight).to(STORAGE).to(tl.float32)
    weight = _norm_weights(
        heads, HALF + pairs, exists, q_norm_ptr, k_norm_ptr, HEADS, KV_HEADS, HEAD_DIM, NORM_OF_EACH_HEAD
    )
    second = ((second * scale).to(WEIGHT).to(tl.float32) * weight).to(STORAGE).to(tl.float32)
    return first, second


@triton.jit
def _quantise_heads(
    first,  # [BLOCK_HEADS, BLOCK_HALF] float32, zero where there is no element
    second,
    scales_ptr,  # [BLOCK_HEADS, 1], where the bfloat16 scale of each head is
    is_kv,  # [BLOCK_HEADS, 1]
    FORMAT: tl.constexpr,
    SCALES_GIVEN: tl.constexpr,
):
    """Codes of both halves of each head, as by `quantise` of `kv_quantisation.py`. Stores or reads scales."""
    if SCALES_GIVEN:
        scales = tl.load(scales_ptr, mask=is_kv, other=1.0).to(tl.float32)
    else:
        largest = code_of_amax(FORMAT)
        amax = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1, keep_dims=True)
        # NaN where an element of the head is not finite, which the maximum may hide.
        sums = tl.sum(first * 0.0 + second * 0.0, axis=1, keep_dims=True)
        amax = tl.maximum(amax, _SMALLEST_AMAX) + sums
        scales = round_up(tl.div_rn(amax, amax * 0.0 + largest))
        tl.store(scales_ptr, scales.to(tl.bfloat16), mask=is_kv)
    inverse = tl.div_rn(1.0, scales)
    return encode(first * inverse, FORMAT), encode(second * inverse, FORMAT)


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def qkv_postprocess_kernel(
    qkv_ptr,  # [tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM], or float32 [PARTIALS, tokens, ...]
    q_ptr,  # [tokens, HEADS * HEAD_DIM], where q is stored: `qkv` itself, unless that holds split-K partials
    bias_ptr,  # [(HEADS + 2 * KV_HEADS) * HEAD_DIM] or None
    q_norm_ptr,  # [HEAD_DIM] or, where NORM_OF_EACH_HEAD, [HEADS, HEAD_DIM], or None
    k_norm_ptr,  # [HEAD_DIM] or [KV_HEADS, HEAD_DIM] or None
    cos_sin_ptr,  # [positions, HEAD_DIM] float32
    positions_ptr,  # [tokens] int64
    slots_ptr,  # [tokens] int64
    k_cache_ptr,  # [slots, KV_HEADS, HEAD_DIM], where FORMAT uint8, or int32 words of eight 4-bit codes
    v_cache_ptr,  # [slots, KV_HEADS, HEAD_DIM], likewise
    scales_ptr,  # [slots, KV_HEADS, 2] bfloat16, of 4-bit codes scale and zero of each group, or None
    stride_qkv_partial,
    stride_qkv_token,
    stride_q_token,
    stride_cos_sin_position,
    stride_k_cache_slot,
    stride_k_cache_head,
    stride_v_cache_slot,
    stride_v_cache_head,
    stride_scales_slot,
    stride_scales_head,
    eps,
    PARTIALS: tl.constexpr,  # split-K partials; 0: qkv is the result
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,  # even
    BLOCK_HALF: tl.constexpr,  # power of two, at least HEAD_DIM / 2
    BLOCK_HEADS: tl.constexpr,  # power of two
    NORM_OF_EACH_HEAD: tl.constexpr,
    NORM_AFTER_ROPE: tl.constexpr,
    FORMAT: tl.constexpr,  # of `kv_quantisation`, 0 for values
    SCALES_GIVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block handles BLOCK_HEADS heads of one token, q, k and v among them alike."""
    HALF: tl.constexpr = HEAD_DIM // 2
    launch_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    pairs = tl.arange(0, BLOCK_HALF)[None, :]
    if FORMAT == _INT4:
        pairs = code_elements(HEAD_DIM, 2 * BLOCK_HALF, BLOCK_HALF)[None, :]
    exists = pairs < HALF
    valid = (heads < HEADS + 2 * KV_HEADS) & exists
    angles = cos_sin_ptr + position * stride_cos_sin_position + pairs
    cos = tl.load(angles, mask=exists, other=0.0)
    sin = tl.load(angles + HALF, mask=exists, other=0.0)
    wait_for_previous(PDL)

    places = heads * HEAD_DIM + pairs
    qkv = qkv_ptr + token * stride_qkv_token + places
    first = tl.load(qkv, mask=valid, other=0.0).to(tl.float32)
    second = tl.load(qkv + HALF, mask=valid, other=0.0).to(tl.float32)
    storage: tl.constexpr = q_ptr.dtype.element_ty
    if PARTIALS:
        for partial in tl.static_range(1, PARTIALS):
            first += tl.load(qkv + partial * stride_qkv_partial, mask=valid, other=0.0)
            second += tl.load(qkv + partial * stride_qkv_partial + HALF, mask=valid, other=0.0)
        # As a GEMM without split-K rounds its result.
        first = first.to(storage).to(tl.float32)
        second = second.to(storage).to(tl.float32)
    if bias_ptr is not None:
        first += tl.load(bias_ptr + places, mask=valid, other=0.0).to(tl.float32)
        second += tl.load(bias_ptr + places + HALF, mask=valid, other=0.0).to(tl.float32)

    is_rotated = heads < HEADS + KV_HEADS
    NORM: tl.constexpr = q_norm_ptr is not None
    if NORM and not NORM_AFTER_ROPE:
        normalised_first, normalised_second = _normalise_heads(
            first, second, heads, pairs, q_norm_ptr, k_norm_ptr, eps,
            HEADS, KV_HEADS, HEAD_DIM, NORM_OF_EACH_HEAD, storage,
        )  # fmt: skip
        first = tl.where(is_rotated, normalised_first, first)
        second = tl.where(is_rotated, normalised_second, second)
    rotated_first = tl.where(is_rotated, first * cos - second * sin, first).to(storage)
    rotated_second = tl.where(is_rotated, second * cos + first * sin, second).to(storage)
    if NORM and NORM_AFTER_ROPE:
        normalised_first, normalised_second = _normalise_heads(
            rotated_first.to(tl.float32), rotated_second.to(tl.float32), heads, pairs, q_norm_ptr, k_norm_ptr, eps,
            HEADS, KV_HEADS, HEAD_DIM, NORM_OF_EACH_HEAD, storage,
        )  # fmt: skip
        rotated_first = tl.where(is_rotated, normalised_first.to(storage), rotated_first)
        rotated_second = tl.where(is_rotated, normalised_second.to(storage), rotated_second)

    is_q = valid & (heads < HEADS)
    q = q_ptr + token * stride_q_token + places
    tl.store(q, rotated_first, mask=is_q)
    tl.store(q + HALF, rotated_second, mask=is_q)
    kv_heads = tl.where(is_rotated, heads - HEADS, heads - HEADS - KV_HEADS)
    if FORMAT == _INT4:
        is_kv = (heads >= HEADS) & (heads < HEADS + 2 * KV_HEADS)
        of_values = tl.where(is_rotated, 0, 2 * group_count(HEAD_DIM))
        scales = scales_ptr + slot * stride_scales_slot + kv_heads * stride_scales_head + of_values
        words = pack_heads(
            rotated_first.to(tl.float32), rotated_second.to(tl.float32), exists, scales, is_kv, HEAD_DIM,
            BLOCK_HEADS, BLOCK_HALF,
        )  # fmt: skip
        columns = tl.arange(0, BLOCK_HALF // 4)[None, :]
        is_word = columns < HEAD_DIM // 8
        k = k_cache_ptr + slot * stride_k_cache_slot + kv_heads * stride_k_cache_head + columns
        tl.store(k, words, mask=is_kv & is_rotated & is_word)
        v = v_cache_ptr + slot * stride_v_cache_slot + kv_heads * stride_v_cache_head + columns
        tl.store(v, words, mask=is_kv & (heads >= HEADS + KV_HEADS) & is_word)
        return
    if FORMAT:
        is_kv = (heads >= HEADS) & (heads < HEADS + 2 * KV_HEADS)
        scales = scales_ptr + slot * stride_scales_slot + kv_heads * stride_scales_head + tl.where(is_rotated, 0, 1)
        rotated_first, rotated_second = _quantise_heads(
            rotated_first.to(tl.float32), rotated_second.to(tl.float32), scales, is_kv, FORMAT, SCALES_GIVEN
        )
    is_k = valid & (heads >= HEADS) & is_rotated
    k = k_cache_ptr + slot * stride_k_cache_slot + kv_heads * stride_k_cache_head + pairs
    tl.store(k, rotated_first, mask=is_k)
    tl.store(k + HALF, rotated_second, mask=is_k)
    is_v = valid & (heads >= HEADS + KV_HEADS)
    v = v_cache_ptr + slot * stride_v_cache_slot + kv_heads * stride_v_cache_head + pairs
    tl.store(v, rotated_first, mask=is_v)
    tl.store(v + HALF, rotated_second, mask=is_v)

"""Loop of decode attention over one chunk of 4-bit codes."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.launch import wait_for_previous
from ..runtime.triton import tl, triton
from ._decode_loops import load_tile_slots, load_words, sees
from ._kv_conversion import log2_of_scales, to_float16
from ._kv_groups import group_count, join_places, load_group, raw_nibbles
from ._online_softmax import apply_options, finite, load_rows

_EVEN, _ODD = tl.constexpr(2.0**24), tl.constexpr(2.0**20)
"""What codes of even and of odd places still lack (`raw_nibbles`)."""


@triton.jit
def _load_queries(
    q_row_ptrs,  # [BLOCK_G]
    exists,  # [BLOCK_G]
    HEAD_DIM: tl.constexpr,
    WORDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Waits for the previous kernel, which writes the queries, and loads them: eight float16 [WORDS, BLOCK_G], which go
    with the places of keys. Those of odd places are 1 / 16, as their codes come 16 times as large.
    """
    SIZE: tl.constexpr = HEAD_DIM // 8
    wait_for_previous(PDL)
    words = tl.arange(0, WORDS)[:, None]
    queries = ()
    for place in tl.static_range(8):
        pointers = q_row_ptrs[None, :] + place * SIZE + words
        loaded = to_float16(tl.load(pointers, mask=exists[None, :] & (words < SIZE), other=0.0))
        queries += (loaded * (0.0625 if place % 2 else 1.0),)
    return queries


@triton.jit
def attend_int4(
    q_row_ptrs,  # [BLOCK_G]
    exists,  # [BLOCK_G], whether there is such a query
    slopes,  # [BLOCK_G] or None
    table_row_ptr,
    k_head_ptr,  # int32 words, as strides are in words
    v_head_ptr,
    scales_head_ptr,  # int32 pairs of scale and zero: the groups of keys, then of values
    begin,
    end,
    kv_lens,  # of the request, or [BLOCK_G] where WIDTH > 1
    stride_k_slot,
    stride_v_slot,
    stride_scales_slot,
    scale_log2,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """`attend_codes` with eight places in a word, each with a GEMM of its own for keys and one for values.

    Scores are sums over groups of scale * codes q, plus (zero - 8 * scale) times the sum of a group's queries. Weights
    are float32 and become float16 times the scale of a group: `maxima` are those of weights times the largest scale of
    a position, so none is above 1. Zeros of values are weighed apart, in float32, and 8 times the sums of the rounded
    weights taken off, so that rounding costs no more than it would with codes from -8 on.
    """
    K_GROUPS: tl.constexpr = group_count(HEAD_DIM)
    V_GROUPS: tl.constexpr = group_count(V_DIM)
    K_WORDS: tl.constexpr = BLOCK_D // 8
    V_WORDS: tl.constexpr = BLOCK_V // 8
    if slopes is not None:
        slopes = slopes[None, :]
    nothing = tl.zeros([K_WORDS, BLOCK_G], dtype=tl.float16)
    q = (nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    empty = tl.zeros([V_WORDS, BLOCK_G], dtype=tl.float32)
    acc = (empty, empty, empty, empty, empty, empty, empty, empty)
    maxima = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    # Of each position of a tile apart: adding them up once, at the end, takes fewer instructions.
    sums = tl.zeros([BLOCK_N, BLOCK_G], dtype=tl.float32)
    ones = tl.full([16, BLOCK_N], 1.0, dtype=tl.float16)
    q_sums, v_zeros, rounded = (), (), ()
    for _ in tl.static_range(K_GROUPS):
        q_sums += (tl.zeros([BLOCK_G], dtype=tl.float32),)
    for _ in tl.static_range(V_GROUPS):
        v_zeros += (tl.zeros([BLOCK_N, BLOCK_G], dtype=tl.float32),)
        rounded += (tl.zeros([16, BLOCK_G], dtype=tl.float32),)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        valid = positions < end
        slots = load_tile_slots(table_row_ptr, positions, end)
        k = load_rows(k_head_ptr, slots, stride_k_slot, valid, False, HEAD_DIM // 8, K_WORDS)
        scales_ptrs = scales_head_ptr + slots * stride_scales_slot
        if start == begin:
            q = _load_queries(q_row_ptrs, exists, HEAD_DIM, K_WORDS, PDL)
            q_sums = _sums_of_groups(q, K_GROUPS)
        codes = raw_nibbles(k)
        scores = tl.zeros([BLOCK_N, BLOCK_G], dtype=tl.float32)
        for group in tl.static_range(K_GROUPS):
            part = tl.zeros([BLOCK_N, BLOCK_G], dtype=tl.float32)
            for place in tl.static_range(group * 8 // K_GROUPS, (group + 1) * 8 // K_GROUPS):
                part = tl.dot(codes[place], q[place], part)
            k_scale, k_zero = load_group(scales_ptrs + group, valid)
            scores += part * (k_scale * _EVEN)[:, None] + (k_zero - 8.0 * k_scale)[:, None] * q_sums[group][None, :]
        if WIDTH == 1:
            distances = (positions - kv_lens + 1)[:, None]
            seen = valid[:, None]
        else:
            distances = positions[:, None] - kv_lens[None, :] + 1
            seen = sees(distances, WINDOW, WIDTH)
        scores, units = apply_options(scores, scale_log2, distances, slopes, SOFTCAP)
        scores = tl.where(seen, scores * units, float("-inf"))
        v = load_words(v_head_ptr, slots, stride_v_slot, V_DIM // 8, V_WORDS)
        of_values = ()
        for group in tl.static_range(V_GROUPS):
            of_values += (load_group(scales_ptrs + K_GROUPS + group, valid),)
        largest = of_values[0][0]
        for group in tl.static_range(1, V_GROUPS):
            largest = tl.maximum(largest, of_values[group][0])
        scaled = scores + log2_of_scales(largest)[:, None]
        new_maxima = tl.maximum(maxima, tl.max(scaled, axis=0))
        base = finite(new_maxima) if WIDTH > 1 else new_maxima
        weights = tl.exp2(scores - base[None, :])
        correction = tl.exp2(maxima - base)
        maxima = new_maxima
        correction = correction[None, :]
        sums = sums * correction + weights
        codes = raw_nibbles(v)
        new_acc, new_zeros, new_rounded = (), (), ()
        for group in tl.static_range(V_GROUPS):
            v_scale, v_zero = of_values[group]
            new_zeros += (v_zeros[group] * correction + weights * v_zero[:, None],)
            scaled_weights = (weights * v_scale[:, None]).to(tl.float16)
            new_rounded += (tl.dot(ones, scaled_weights, rounded[group] * correction),)
            for place in tl.static_range(group * 8 // V_GROUPS, (group + 1) * 8 // V_GROUPS):
                new_acc += (tl.dot(codes[place], scaled_weights, acc[place] * correction),)
        acc, v_zeros, rounded = new_acc, new_zeros, new_rounded
    out = ()
    for group in tl.static_range(V_GROUPS):
        # All 16 rows of `rounded` are the same.
        zeros = tl.sum(v_zeros[group], axis=0) - tl.sum(rounded[group], axis=0) * 0.5
        for place in tl.static_range(group * 8 // V_GROUPS, (group + 1) * 8 // V_GROUPS):
            out += ((acc[place] * (_ODD if place % 2 else _EVEN) + zeros[None, :]).T,)
    return join_places(*out, BLOCK_G, V_WORDS), maxima, tl.sum(sums, axis=0)


@triton.jit
def _sums_of_groups(q, GROUPS: tl.constexpr):
    """float32 sums [BLOCK_G] of the queries that go with each group."""
    sums = ()
    for group in tl.static_range(GROUPS):
        total = tl.zeros([q[0].shape[1]], dtype=tl.float32)
        for place in tl.static_range(group * 8 // GROUPS, (group + 1) * 8 // GROUPS):
            total += tl.sum(q[place].to(tl.float32), axis=0) * (16.0 if place % 2 else 1.0)
        sums += (total,)
    return sums

"""4-bit codes of the KV cache inside kernels: words, places and groups (`kv_quantisation.py`).

    value = scale * (code - 8) + zero        scale and zero in bfloat16 for each group of a head

A word of eight codes becomes eight float16 numbers, exactly. As they are, the bits of a code are code * 2 ** -24, or
code * 2 ** -20 where it is the upper half of a byte: one instruction a pair, and GEMMs take such numbers. 0x64 above
them makes 1024 + code, or 1024 + 16 * code, and one more instruction code - 8. Triton's interpreter has no inline
assembly, so plain operations compute the same there.

Tiles have as many columns for a place as the power of two above the words of a head; column j * WORDS + w of a tile is
place j of word w. For heads whose words are no power of two, some columns are of no element.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from ..runtime.triton import knobs, tl, triton
from ._kv_conversion import round_up
from ._online_softmax import load_rows
from .kv_quantisation import SMALLEST_AMAX, groups_of

_SMALLEST_WIDTH = tl.constexpr(SMALLEST_AMAX)
_INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


group_count = triton.constexpr_function(groups_of)


@triton.jit
def code_elements(SIZE: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Element of each of the first COLUMNS of BLOCK columns of a tile, SIZE where there is none."""
    WORDS: tl.constexpr = BLOCK // 8
    columns = tl.arange(0, COLUMNS)
    if SIZE == BLOCK:
        return columns
    else:
        words = columns % WORDS
        return tl.where(words < SIZE // 8, columns // WORDS * (SIZE // 8) + words, SIZE)


@triton.jit
def _plain(words, PLACE: tl.constexpr):
    return (((words >> (4 * PLACE)) & 15) - 8).to(tl.float16)


@triton.jit
def widen_nibbles(words):
    """Eight float16 tensors of int32 words: code - 8 of the first places of all words, the second, ...

    Codes of two words become pairs, as by `widen_words`.
    """
    if _INTERPRETED:
        return (
            _plain(words, 0), _plain(words, 1), _plain(words, 2), _plain(words, 3),
            _plain(words, 4), _plain(words, 5), _plain(words, 6), _plain(words, 7),
        )  # fmt: skip
    # 1032 is 0x6408, 1 / 16 is 0x2c00, -72 is 0xd480.
    return tl.inline_asm_elementwise(
        """{ .reg .b32 lo, hi, t, low, high, ones, eight, part, less;
        mov.b32 low, 0x000f000f;
        mov.b32 high, 0x00f000f0;
        mov.b32 ones, 0x64006400;
        mov.b32 eight, 0x64086408;
        mov.b32 part, 0x2c002c00;
        mov.b32 less, 0xd480d480;
        prmt.b32 lo, $8, $9, 0x5410;
        prmt.b32 hi, $8, $9, 0x7632;
        lop3.b32 t, lo, low, ones, 0xea;
        sub.rn.f16x2 $0, t, eight;
        lop3.b32 t, lo, high, ones, 0xea;
        fma.rn.f16x2 $1, t, part, less;
        shr.b32 lo, lo, 8;
        lop3.b32 t, lo, low, ones, 0xea;
        sub.rn.f16x2 $2, t, eight;
        lop3.b32 t, lo, high, ones, 0xea;
        fma.rn.f16x2 $3, t, part, less;
        lop3.b32 t, hi, low, ones, 0xea;
        sub.rn.f16x2 $4, t, eight;
        lop3.b32 t, hi, high, ones, 0xea;
        fma.rn.f16x2 $5, t, part, less;
        shr.b32 hi, hi, 8;
        lop3.b32 t, hi, low, ones, 0xea;
        sub.rn.f16x2 $6, t, eight;
        lop3.b32 t, hi, high, ones, 0xea;
        fma.rn.f16x2 $7, t, part, less; }""",
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r", [words],
        dtype=(tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
        is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def _raw(words, PLACE: tl.constexpr):
    return ((words >> (4 * PLACE)) & 15).to(tl.float16) * (2.0**-20 if PLACE % 2 else 2.0**-24)


@triton.jit
def raw_nibbles(words):
    """`widen_nibbles` without its last step: code * 2 ** -24 in even places, code * 2 ** -20 in odd ones."""
    if _INTERPRETED:
        return (
            _raw(words, 0), _raw(words, 1), _raw(words, 2), _raw(words, 3),
            _raw(words, 4), _raw(words, 5), _raw(words, 6), _raw(words, 7),
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{ .reg .b32 lo, hi, t;
        prmt.b32 lo, $8, $9, 0x5410;
        prmt.b32 hi, $8, $9, 0x7632;
        and.b32 $0, lo, 0x000f000f;
        and.b32 $1, lo, 0x00f000f0;
        shr.b32 t, lo, 8;
        and.b32 $2, t, 0x000f000f;
        and.b32 $3, t, 0x00f000f0;
        and.b32 $4, hi, 0x000f000f;
        and.b32 $5, hi, 0x00f000f0;
        shr.b32 t, hi, 8;
        and.b32 $6, t, 0x000f000f;
        and.b32 $7, t, 0x00f000f0; }""",
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r", [words],
        dtype=(tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
        is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def join_places(p0, p1, p2, p3, p4, p5, p6, p7, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """[ROWS, 8 * WORDS] from eight [ROWS, WORDS]: one place after the other."""
    low = tl.join(tl.join(p0, p1), tl.join(p2, p3))
    high = tl.join(tl.join(p4, p5), tl.join(p6, p7))
    return tl.reshape(tl.permute(tl.join(low, high), 0, 4, 3, 2, 1), [ROWS, 8 * WORDS])


@triton.jit
def load_group(scales_ptrs, valid):
    """float32 scale and zero [N] of one group from int32 pairs, 0 where not `valid`."""
    pairs = tl.load(scales_ptrs, mask=valid, other=0)
    return (pairs << 16).to(tl.float32, bitcast=True), (pairs & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def load_values(
    head_ptr,  # int32 words, as the stride is in words
    scales_ptrs,  # [N], the first pair of the key's or value's groups
    slots,  # [N]
    stride_slot,
    valid,  # [N]
    MASKED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """float16 values [BLOCK_N, BLOCK] of keys or values, with columns as above."""
    GROUPS: tl.constexpr = group_count(SIZE)
    WORDS: tl.constexpr = BLOCK // 8
    words = load_rows(head_ptr, slots, stride_slot, valid, MASKED, SIZE // 8, WORDS)
    codes = widen_nibbles(words)
    values = ()
    for place in tl.static_range(8):
        scale, zero = load_group(scales_ptrs + place * GROUPS // 8, valid)
        values += (codes[place] * scale.to(tl.float16)[:, None] + zero.to(tl.float16)[:, None],)
    return join_places(*values, BLOCK_N, WORDS)


@triton.jit
def _nearest(values):
    """float32 values of `values` rounded to the nearest bfloat16, half to even."""
    bits = values.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(values == values, rounded.to(tl.float32, bitcast=True), values)


@triton.jit
def _half_codes(
    values,  # [ROWS, GROUPS, columns] float32
    smallest,  # [ROWS, GROUPS, 1]
    largest,
    not_finite,  # [ROWS, GROUPS, 1], 0 or NaN
    scales_ptrs,  # [ROWS, 1], where the bfloat16 scale of the first group is
    stored,  # [ROWS, 1], whether it is stored
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """int32 [ROWS, WORDS], four codes of half a head in 16 bits. Stores scales and zeros."""
    width = tl.maximum(largest - smallest, _SMALLEST_WIDTH) + not_finite
    scale = round_up(tl.div_rn(width, width * 0.0 + 15.0))
    zero = _nearest(smallest + scale * 8.0)
    pairs = scales_ptrs[:, :, None] + 2 * tl.arange(0, GROUPS)[None, :, None]
    tl.store(pairs, scale.to(tl.bfloat16), mask=stored[:, :, None])
    tl.store(pairs + 1, zero.to(tl.bfloat16), mask=stored[:, :, None])
    steps = (values - zero) * tl.div_rn(1.0, scale)
    steps = tl.minimum(tl.maximum(steps, -8.0), 7.0)
    # Adding 1.5 * 2 ** 23 leaves the rounded number in the low bits; 8 is the bias.
    codes = (steps + 12582920.0).to(tl.int32, bitcast=True) & 15
    places = tl.reshape(codes, [ROWS, 4, WORDS]) << (4 * tl.arange(0, 4))[None, :, None]
    return tl.sum(places, axis=1)


@triton.jit
def pack_heads(
    first,  # [ROWS, BLOCK_HALF] float32, with columns as above: places 0 to 3 of each head
    second,  # places 4 to 7
    exists,  # [1, BLOCK_HALF], whether a column has an element
    scales_ptrs,  # [ROWS, 1], where the bfloat16 scale of the first group is
    stored,  # [ROWS, 1], whether scales are stored
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """int32 words [ROWS, BLOCK_HALF / 4] of heads, as `quantise` of `kv_quantisation.py` makes them. Stores scales."""
    GROUPS: tl.constexpr = group_count(HEAD_DIM)
    OF_HALF: tl.constexpr = max(1, GROUPS // 2)
    OF_GROUP: tl.constexpr = BLOCK_HALF // OF_HALF
    inside = tl.reshape(tl.broadcast_to(exists, [ROWS, BLOCK_HALF]), [ROWS, OF_HALF, OF_GROUP])
    first, second = (tl.reshape(first, [ROWS, OF_HALF, OF_GROUP]), tl.reshape(second, [ROWS, OF_HALF, OF_GROUP]))
    least1 = tl.min(tl.where(inside, first, float("inf")), axis=2, keep_dims=True)
    least2 = tl.min(tl.where(inside, second, float("inf")), axis=2, keep_dims=True)
    most1 = tl.max(tl.where(inside, first, float("-inf")), axis=2, keep_dims=True)
    most2 = tl.max(tl.where(inside, second, float("-inf")), axis=2, keep_dims=True)
    # NaN where an element is not finite, which minimum and maximum may hide.
    bad1 = tl.sum(first * 0.0, axis=2, keep_dims=True)
    bad2 = tl.sum(second * 0.0, axis=2, keep_dims=True)
    second_ptrs = scales_ptrs + 2 * OF_HALF
    if GROUPS == 1:
        least1, most1, bad1 = tl.minimum(least1, least2), tl.maximum(most1, most2), bad1 + bad2
        least2, most2, bad2 = least1, most1, bad1
        second_ptrs = scales_ptrs
    WORDS: tl.constexpr = BLOCK_HALF // 4
    low = _half_codes(first, least1, most1, bad1, scales_ptrs, stored, ROWS, OF_HALF, WORDS)
    high = _half_codes(second, least2, most2, bad2, second_ptrs, stored, ROWS, OF_HALF, WORDS)
    return low | (high << 16)

"""Codes to 16-bit weights in registers: inline PTX, or plain Triton in the interpreter and on cards of others.

A conversion for each weight would take most of the time. So an integer becomes a float without one: a code in the last
bits of the mantissa of 128 (bfloat16) or 1024 (float16) is that number plus the code.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from collections.abc import Callable

from ..runtime.triton import tl, triton


def _nibbles(magic: str) -> str:
    """Two words to eight pairs: each plane's two neighbours, in the last bits of `magic`."""
    lines = [".reg .b32 t;"]
    for plane in range(8):
        word = f"${8 + plane // 4}"
        if plane % 4:
            lines.append(f"shr.u32 t, {word}, {4 * (plane % 4)};")
            word = "t"
        lines.append(f"lop3.b32 ${plane}, {word}, 0x000f000f, {magic}, 0xea;")
    return "{ " + " ".join(lines) + " }"


def _lookups() -> str:
    """Two words and the table's low bytes ($10, $12, .. $16) and high bytes ($18 .. $24) to eight pairs.

    A byte permutation looks up four codes among eight bytes; another chooses between both halves of the table.
    """
    lines = [".reg .b32 low, high, s, c, a, b, el, eh, ol, oh, e0, e1, o0, o1;"]
    for word in range(2):
        code = f"${8 + word}"
        lines += [f"and.b32 low, {code}, 0x77777777;", "shr.u32 high, low, 16;"]
        lines += [f"shr.u32 s, {code}, 1;", "lop3.b32 c, s, 0x44444444, 0x32103210, 0xea;", "shr.u32 s, c, 16;"]
        for member, selector, choice in (("e", "low", "c"), ("o", "high", "s")):
            for half, first in (("l", 10), ("h", 18)):
                lines.append(f"prmt.b32 a, ${first}, ${first + 2}, {selector};")
                lines.append(f"prmt.b32 b, ${first + 4}, ${first + 6}, {selector};")
                lines.append(f"prmt.b32 {member}{half}, a, b, {choice};")
            lines.append(f"prmt.b32 {member}0, {member}l, {member}h, 0x5140;")
            lines.append(f"prmt.b32 {member}1, {member}l, {member}h, 0x7362;")
        for plane in range(4):
            pair = f"e{plane // 2}, o{plane // 2}"
            lines.append(f"prmt.b32 ${4 * word + plane}, {pair}, {'0x7632' if plane % 2 else '0x5410'};")
    return "{ " + " ".join(lines) + " }"


def _float4_bits(plane: int, word: str) -> str:
    """The pair at `plane` of a word, in `t`: sign, exponent and mantissa of e2m1 in their places of bfloat16.

    One multiplication puts a code into both places; a mask leaves of each copy what belongs there.
    """
    if plane == 3:
        return f"shr.u32 t, {word}, 6; and.b32 t, t, 0x01c001c0; lop3.b32 t, {word}, 0x80008000, t, 0xea;"
    first = (
        f"shr.u32 t, {word}, 2; and.b32 t, t, 0x03c003c0;"
        if plane == 2
        else f"and.b32 t, {word}, {0xF000F << 4 * plane};"
    )
    factor = ((1 << 12) + (1 << 6), (1 << 8) + (1 << 2), (1 << 6) + 1)[plane]
    return f"{first} mul.lo.u32 t, t, {factor}; and.b32 t, t, 0x81c081c0;"


def _float4() -> str:
    """Two words of e2m1 to eight pairs."""
    planes = (_float4_bits(plane % 4, f"${8 + plane // 4}") + f" mov.b32 ${plane}, t;" for plane in range(8))
    return "{ .reg .b32 t; " + " ".join(planes) + " }"


def _e2m1_fp16_bits(plane: int, word: str) -> str:
    """The same in the places of float16.

    One multiplication puts a code into both places, bits 12 to 15 and 9 to 12. They share a bit: where that is set in
    both, they carry. So 1 is subtracted from the upper four bits, of which only the sign counts: 0 becomes -0, other
    signs stay. A bit above the lower half keeps that from the upper one.
    """
    if plane == 3:
        return f"shr.u32 t, {word}, 3; and.b32 t, t, 0x0e000e00; lop3.b32 t, {word}, 0x80008000, t, 0xea;"
    factor = (1 << 12 - 4 * plane) + (1 << 9 - 4 * plane)
    mask = 0xF000F << 4 * plane
    return f"and.b32 t, {word}, {mask}; mad.lo.u32 t, t, {factor}, 0xf000f000; and.b32 t, t, 0x8e008e00;"


def _e2m1_fp16() -> str:
    """Two words of e2m1 to eight pairs."""
    planes = (_e2m1_fp16_bits(plane % 4, f"${8 + plane // 4}") + f" mov.b32 ${plane}, t;" for plane in range(8))
    return "{ .reg .b32 t; " + " ".join(planes) + " }"


def _scaled(bits: Callable[[int, str], str], kind: str) -> str:
    """Two words of e2m1, and as many with the scales of each word's planes 0 and 1, and of 2 and 3, to eight pairs."""
    # Before compute capability 9.0 there is no multiplication of bfloat16 alone.
    lines = [".reg .b32 t, s, zero; mov.b32 zero, 0x80008000;"]
    for plane in range(8):
        half, own = divmod(plane, 4)
        scales, selector = f"${10 + own // 2 * 2 + half}", "0x3232" if own % 2 else "0x1010"
        lines += [bits(own, f"${8 + half}"), f"prmt.b32 s, {scales}, {scales}, {selector};"]
        lines.append(f"fma.rn.{kind} ${plane}, t, s, zero;")
    return "{ " + " ".join(lines) + " }"


_OUTPUTS = "=r,=r,=r,=r,=r,=r,=r,=r"
_FLOAT4 = tl.constexpr(_float4())
_E2M1_FP16 = tl.constexpr(_e2m1_fp16())
_SCALED_BF16 = tl.constexpr(_scaled(_float4_bits, "bf16x2"))
_SCALED_FP16 = tl.constexpr(_scaled(_e2m1_fp16_bits, "f16x2"))
_SCALED_ARGUMENTS = tl.constexpr(_OUTPUTS + ",r" * 6)
_NIBBLES_BF16 = tl.constexpr(_nibbles("0x43004300"))
_NIBBLES_FP16 = tl.constexpr(_nibbles("0x64006400"))
_NIBBLES_ARGUMENTS = tl.constexpr(_OUTPUTS + ",r,r")
_LOOKUPS = tl.constexpr(_lookups())
_LOOKUPS_ARGUMENTS = tl.constexpr(_OUTPUTS + ",r" * 18)
# Four codes to two pairs. 128 + the last seven bits, less 128 or 256 by the first bit, and 1024 + code - 1152.
_BYTES_BF16 = tl.constexpr(
    "{ .reg .b32 p, a, b, one; mov.b32 one, 0x3f803f80;"
    + "".join(
        f" prmt.b32 p, $2, 0, {selector}; lop3.b32 a, p, 0x007f007f, 0x43004300, 0xea;"
        f" lop3.b32 b, p, 0x00800080, 0xc380c380, 0x6a; fma.rn.bf16x2 ${pair}, a, one, b;"
        for pair, selector in enumerate(("0x4140", "0x4342"))
    )
    + " }"
)
_BYTES_FP16 = tl.constexpr(
    "{ .reg .b32 p, one, less; mov.b32 one, 0x3c003c00; mov.b32 less, 0xe480e480;"
    + "".join(
        f" prmt.b32 p, $2, 0x64646464, {selector}; fma.rn.f16x2 ${pair}, p, one, less;"
        for pair, selector in enumerate(("0x4140", "0x4342"))
    )
    + " }"
)


def _float8(shift: int, mask: str, factor: str, scaled: str) -> str:
    """Sign, exponent and mantissa of e4m3 in the places of a wider type, times 2 to the difference of the biases."""
    return (
        f"{{ .reg .b32 p, t, factor, zero; mov.b32 factor, {factor}; mov.b32 zero, 0x80008000;"
        + "".join(
            f" prmt.b32 p, $2, 0, {selector}; shr.u32 t, p, {shift}; and.b32 t, t, {mask};"
            f" lop3.b32 t, p, 0x80008000, t, 0xea; {scaled.format(pair)}"
            for pair, selector in enumerate(("0x1404", "0x3424"))
        )
        + " }"
    )


_FLOAT8_BF16 = tl.constexpr(_float8(4, "0x07f007f0", "0x7b807b80", "fma.rn.bf16x2 ${}, t, factor, zero;"))
_FLOAT8_FP16 = tl.constexpr(_float8(1, "0x3f803f80", "0x5c005c00", "mul.rn.f16x2 ${}, t, factor;"))


@triton.jit
def nibbles(words, FP16: tl.constexpr):
    """Words [rows, 32] of a block to its eight planes [rows, 32]: 128 + code in bfloat16, or 1024 + code in float16.

    Neighbours in a row must be in one thread, side by side, as operands of matrix instructions are.
    """
    if FP16:
        return tl.inline_asm_elementwise(
            _NIBBLES_FP16, _NIBBLES_ARGUMENTS, [words], dtype=(tl.float16,) * 8, is_pure=True, pack=2
        )
    else:
        return tl.inline_asm_elementwise(
            _NIBBLES_BF16, _NIBBLES_ARGUMENTS, [words], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
        )


@triton.jit
def lookups(words, table, FP16: tl.constexpr):
    """Words [rows, 32] of a block to its eight planes [rows, 32] of entries of `table`, which `load_table` made.

    Neighbours in a row must be in one thread, as for `nibbles`.
    """
    if FP16:
        return tl.inline_asm_elementwise(
            _LOOKUPS,
            _LOOKUPS_ARGUMENTS,
            [words, table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7]],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            _LOOKUPS,
            _LOOKUPS_ARGUMENTS,
            [words, table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7]],
            dtype=(tl.bfloat16,) * 8,
            is_pure=True,
            pack=2,
        )


@triton.jit
def float4(words):
    """Words [rows, 32] of a block of e2m1 to its eight planes [rows, 32], in bfloat16 and times 2 ** -126, the ratio of
    the least numbers with a leading one: what is below them is right as well once it is multiplied by 2 ** 126.

    Neighbours in a row must be in one thread, as for `nibbles`.
    """
    return tl.inline_asm_elementwise(
        _FLOAT4, _NIBBLES_ARGUMENTS, [words], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
    )


@triton.jit
def e2m1_fp16(words):
    """Words [.., columns] of blocks of e2m1 to their eight planes, in float16 and times 2 ** -14, the ratio of the
    least numbers with a leading one: what is below them is right as well.

    Neighbours in a row must be in one thread, as for `nibbles`.
    """
    return tl.inline_asm_elementwise(
        _E2M1_FP16, _NIBBLES_ARGUMENTS, [words], dtype=(tl.float16,) * 8, is_pure=True, pack=2
    )


@triton.jit
def _column_words(values):
    """Scales [rows, 16] of 16 bits to [rows, 2, 2] int32, for inputs of the first and last 16 of planes, and planes
    0 to 3 and 4 to 7: of planes 0 and 1 of those, and of 2 and 3.
    """
    rows: tl.constexpr = values.shape[0]
    bits = tl.reshape(values.to(tl.int16, bitcast=True).to(tl.int32), [rows, 2, 2, 2, 2])
    lower, upper = tl.split(tl.permute(bits, (0, 4, 1, 2, 3)))
    return tl.split(lower & 0xFFFF | upper << 16)


@triton.jit
def _spread_words(words):
    """[rows, 2, 2] to [rows, 32]: one for each word of a block."""
    rows: tl.constexpr = words.shape[0]
    return tl.reshape(tl.broadcast_to(words[:, :, None, :], [rows, 2, 8, 2]), [rows, 32])


@triton.constexpr_function
def scaled_e2m1_is_less(dtype):
    """What sums over weights of `scaled_e2m1` are to be multiplied by."""
    return 2.0**14 if dtype == tl.float16 else 2.0**8


@triton.jit
def scaled_e2m1(words, scales, dtype: tl.constexpr):
    """Words [rows, 32] of a block of e2m1 to its eight planes [rows, 32], times the 16 scales [rows, 16] of its
    groups, which are bytes of float8. Each weight is exact, and less than it should be (`scaled_e2m1_is_less`).

    Neighbours in a row must be in one thread, as for `nibbles`.
    """
    first, second = _column_words(float8_scales(scales, 0 if dtype == tl.float16 else 118, dtype))
    first = _spread_words(first)
    second = _spread_words(second)
    if dtype == tl.float16:
        return tl.inline_asm_elementwise(
            _SCALED_FP16, _SCALED_ARGUMENTS, [words, first, second], dtype=(tl.float16,) * 8, is_pure=True, pack=2
        )
    else:
        return tl.inline_asm_elementwise(
            _SCALED_BF16, _SCALED_ARGUMENTS, [words, first, second], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
        )


@triton.jit
def _four_bytes(table_ptr, first, shift, FP16: tl.constexpr):
    """One byte of each of four entries."""
    word = 0
    for index in tl.static_range(4):
        entry = tl.load(table_ptr + first + index).to(tl.float16 if FP16 else tl.bfloat16)
        bits = entry.to(tl.int16, bitcast=True).to(tl.int32)
        word |= (bits >> shift & 255) << (8 * index)
    return word


@triton.jit
def load_table(table_ptr, FP16: tl.constexpr):
    """[16] float32 to eight words: the low bytes of its entries in 16 bits, then the high bytes."""
    return (
        _four_bytes(table_ptr, 0, 0, FP16),
        _four_bytes(table_ptr, 4, 0, FP16),
        _four_bytes(table_ptr, 8, 0, FP16),
        _four_bytes(table_ptr, 12, 0, FP16),
        _four_bytes(table_ptr, 0, 8, FP16),
        _four_bytes(table_ptr, 4, 8, FP16),
        _four_bytes(table_ptr, 8, 8, FP16),
        _four_bytes(table_ptr, 12, 8, FP16),
    )


@triton.jit
def plain_plane(block_ptrs, table_ptr, PLANE: tl.constexpr, dtype: tl.constexpr):
    """One plane [rows, 32] of the block at `block_ptrs` [rows, 1], as `nibbles` or `lookups` give it."""
    element = tl.arange(0, 32)[None, :]
    words = tl.load(block_ptrs + element // 2 * 2 + PLANE // 4)
    codes = words >> (element % 2 * 16 + PLANE % 4 * 4) & 15
    if table_ptr is not None:
        return tl.load(table_ptr + codes).to(dtype)
    else:
        return (codes + (1024 if dtype == tl.float16 else 128)).to(dtype)


@triton.jit
def float8_scales(codes, POWER: tl.constexpr, dtype: tl.constexpr):
    """int8, the bytes of float8, to 16 bits times 2 ** POWER, which are exact. No inline PTX, so that the compiler may
    choose where a thread has them.
    """
    # Sign, exponent and mantissa in their places, times 2 to the difference of the biases.
    if dtype == tl.bfloat16:
        values = ((codes.to(tl.int16) << 4) & -0x7810).to(tl.bfloat16, bitcast=True) * 2.0**120
    else:
        values = (((codes.to(tl.int16) << 7) & -0x4080).to(tl.float16, bitcast=True) * 2.0**8).to(dtype)
    return values if POWER == 0 else values * 2.0**POWER


@triton.jit
def eight_bits(codes, FLOAT8: tl.constexpr, dtype: tl.constexpr, PLAIN: tl.constexpr):
    """uint8 to 16 bits: the code less 128, or the value of the float8 of that byte."""
    if PLAIN:
        if FLOAT8:
            return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(dtype)
        else:
            return (codes.to(tl.int32) - 128).to(dtype)
    elif FLOAT8:
        if dtype == tl.float16:
            return tl.inline_asm_elementwise(_FLOAT8_FP16, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
        else:
            return tl.inline_asm_elementwise(_FLOAT8_BF16, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4)
    elif dtype == tl.float16:
        return tl.inline_asm_elementwise(_BYTES_FP16, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    else:
        return tl.inline_asm_elementwise(_BYTES_BF16, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4)

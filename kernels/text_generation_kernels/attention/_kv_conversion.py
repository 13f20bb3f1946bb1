"""Conversions between values and 8-bit codes of the KV cache, inside kernels.

    value = scale * code        codes in a format of `kv_quantisation.py`, one bfloat16 scale for each head of a token

Kernels apply scales to scores and to softmax weights, so an element costs its conversion alone: to float16, which holds
every code exactly. Conversions are integer instructions on two or four codes at a time, the same on every card;
hardware conversions of 8-bit floats begin with compute capability 8.9. float8_e4m3fn becomes float16 by one shift,
subnormals included, but 2 ** -8 times as large; `code_unit` takes that back. Triton's interpreter has no inline
assembly, so plain operations compute the same bits there.
"""

# pyright: basic
from ..runtime.triton import knobs, tl, triton

E4M3, E5M2, INT8, E4M3_BY_HARDWARE, INT4 = 1, 2, 3, 4, 5
"""Formats of codes. Those of 4 bits are converted in `_kv_groups.py`."""
_E4M3, _E5M2, _INT8, _E4M3_BY_HARDWARE = (tl.constexpr(each) for each in (E4M3, E5M2, INT8, E4M3_BY_HARDWARE))
_INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def largest_code(FORMAT: tl.constexpr):
    """Largest value of a code."""
    return 448.0 if FORMAT == _E4M3 else (57344.0 if FORMAT == _E5M2 else 127.0)


@triton.jit
def code_of_amax(FORMAT: tl.constexpr):
    """Code of a head's largest value, where the scale is measured."""
    return 448.0 if FORMAT == _E4M3 else (1.75 if FORMAT == _E5M2 else 127.0)


@triton.jit
def code_unit(FORMAT: tl.constexpr):
    """Factor that converted codes still lack."""
    return 256.0 if FORMAT == _E4M3 else (128.0 if FORMAT == _INT8 else 1.0)


@triton.jit
def encode(values, FORMAT: tl.constexpr):
    """uint8 codes of float32 `values`, which saturate. Rounds half to even, as torch does."""
    largest = largest_code(FORMAT)
    values = tl.minimum(tl.maximum(values, -largest), largest)
    if FORMAT == _INT8:
        # Adding 1.5 * 2 ** 23 leaves the rounded number in the low bits; 128 is the bias.
        return ((values + 12583040.0).to(tl.int32, bitcast=True) & 0xFF).to(tl.uint8)
    BIAS: tl.constexpr = 7 if FORMAT == _E4M3 else 15
    DROPPED: tl.constexpr = 20 if FORMAT == _E4M3 else 21
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + ((size >> DROPPED) & 1) + ((BIAS - 127) * (1 << 23) + (1 << (DROPPED - 1)) - 1)) >> DROPPED
    # Subnormal codes: a power of two, added, leaves them in the low bits, rounded.
    SHIFTER: tl.constexpr = 128 - BIAS + DROPPED
    shifter = tl.full([], SHIFTER << 23, dtype=tl.int32).to(tl.float32, bitcast=True)
    subnormal = (tl.abs(values) + shifter).to(tl.int32, bitcast=True) - (SHIFTER << 23)
    codes = tl.where(size < ((128 - BIAS) << 23), subnormal, normal)
    return (codes | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _plain(codes, FORMAT: tl.constexpr):
    """float16 of int32 codes, one by one."""
    if FORMAT == _INT8:
        return (codes.to(tl.float32) * (1.0 / 128) - 1.0).to(tl.float16)
    if FORMAT == _E5M2:
        return (codes << 8).to(tl.int16).to(tl.float16, bitcast=True)
    return (((codes & 0x80) << 8) | ((codes & 0x7F) << 7)).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def widen(codes, FORMAT: tl.constexpr):
    """float16 of uint8 codes, in units of `code_unit`: two `prmt` put four codes into float16 places."""
    if _INTERPRETED:
        return _plain(codes.to(tl.int32), FORMAT)
    if FORMAT == _INT8:
        # 0x64 above a code makes 1024 + code; 2 ** -7 (0x2000) of it less 9 (0x4880) is (code - 128) / 128.
        return tl.inline_asm_elementwise(
            """{ .reg .b32 lo, hi, unit, nine;
            mov.b32 unit, 0x20002000;
            mov.b32 nine, 0xc880c880;
            prmt.b32 lo, $2, 0x64646464, 0x4140;
            prmt.b32 hi, $2, 0x64646464, 0x4342;
            fma.rn.f16x2 $0, lo, unit, nine;
            fma.rn.f16x2 $1, hi, unit, nine; }""",
            "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    if FORMAT == _E4M3_BY_HARDWARE:
        return tl.inline_asm_elementwise(
            """{ .reg .b16 lo, hi;
            mov.b32 {lo, hi}, $2;
            cvt.rn.f16x2.e4m3x2 $0, lo;
            cvt.rn.f16x2.e4m3x2 $1, hi; }""",
            "=&r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    if FORMAT == _E5M2:
        return tl.inline_asm_elementwise(
            """prmt.b32 $0, $2, 0, 0x1404;
            prmt.b32 $1, $2, 0, 0x3424;""",
            "=&r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{ .reg .b32 lo, hi, t;
        prmt.b32 lo, $2, 0, 0x1404;
        prmt.b32 hi, $2, 0, 0x3424;
        shr.b32 t, lo, 1;
        and.b32 t, t, 0x3f803f80;
        lop3.b32 $0, lo, 0x80008000, t, 0xea;
        shr.b32 t, hi, 1;
        and.b32 t, t, 0x3f803f80;
        lop3.b32 $1, hi, 0x80008000, t, 0xea; }""",
        "=&r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def widen_words(words, FORMAT: tl.constexpr):
    """Four float16 tensors of int32 words, in units of `code_unit`: the first codes of all words, the second, ...

    Codes of two words become pairs. Values, whose neighbours in memory belong to one token, are then laid out in
    registers as an MMA over tokens takes its operands, without a detour through shared memory.
    """
    if _INTERPRETED:
        return (
            _plain(words & 0xFF, FORMAT),
            _plain((words >> 8) & 0xFF, FORMAT),
            _plain((words >> 16) & 0xFF, FORMAT),
            _plain((words >> 24) & 0xFF, FORMAT),
        )
    if FORMAT == _INT8:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 lo, hi, t, unit, nine;
            mov.b32 unit, 0x20002000;
            mov.b32 nine, 0xc880c880;
            prmt.b32 lo, $4, $5, 0x5140;
            prmt.b32 hi, $4, $5, 0x7362;
            prmt.b32 t, lo, 0x64646464, 0x4140;
            fma.rn.f16x2 $0, t, unit, nine;
            prmt.b32 t, lo, 0x64646464, 0x4342;
            fma.rn.f16x2 $1, t, unit, nine;
            prmt.b32 t, hi, 0x64646464, 0x4140;
            fma.rn.f16x2 $2, t, unit, nine;
            prmt.b32 t, hi, 0x64646464, 0x4342;
            fma.rn.f16x2 $3, t, unit, nine; }""",
            "=&r,=&r,=&r,=&r,r,r", [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    if FORMAT == _E5M2:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 lo, hi;
            prmt.b32 lo, $4, $5, 0x5140;
            prmt.b32 hi, $4, $5, 0x7362;
            prmt.b32 $0, lo, 0, 0x1404;
            prmt.b32 $1, lo, 0, 0x3424;
            prmt.b32 $2, hi, 0, 0x1404;
            prmt.b32 $3, hi, 0, 0x3424; }""",
            "=&r,=&r,=&r,=&r,r,r", [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    if FORMAT == _E4M3_BY_HARDWARE:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 lo, hi;
            .reg .b16 a, b, c, d;
            prmt.b32 lo, $4, $5, 0x5140;
            prmt.b32 hi, $4, $5, 0x7362;
            mov.b32 {a, b}, lo;
            mov.b32 {c, d}, hi;
            cvt.rn.f16x2.e4m3x2 $0, a;
            cvt.rn.f16x2.e4m3x2 $1, b;
            cvt.rn.f16x2.e4m3x2 $2, c;
            cvt.rn.f16x2.e4m3x2 $3, d; }""",
            "=&r,=&r,=&r,=&r,r,r", [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{ .reg .b32 lo, hi, t, s;
        prmt.b32 lo, $4, $5, 0x4501;
        prmt.b32 hi, $4, $5, 0x6723;
        shr.b32 t, lo, 1;
        and.b32 t, t, 0x3f803f80;
        lop3.b32 $0, lo, 0x80008000, t, 0xea;
        shl.b32 t, lo, 7;
        and.b32 t, t, 0x3f803f80;
        shl.b32 s, lo, 8;
        lop3.b32 $1, s, 0x80008000, t, 0xea;
        shr.b32 t, hi, 1;
        and.b32 t, t, 0x3f803f80;
        lop3.b32 $2, hi, 0x80008000, t, 0xea;
        shl.b32 t, hi, 7;
        and.b32 t, t, 0x3f803f80;
        shl.b32 s, hi, 8;
        lop3.b32 $3, s, 0x80008000, t, 0xea; }""",
        "=&r,=&r,=&r,=&r,r,r", [words],
        dtype=(tl.float16, tl.float16, tl.float16, tl.float16), is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def to_float16(queries):
    """float16 queries for GEMMs with codes. They saturate: what float16 cannot hold must not become infinite."""
    wide = queries.to(tl.float32)
    return tl.minimum(tl.maximum(wide, -65504.0), 65504.0).to(tl.float16)


@triton.jit
def join_words(first, second, third, fourth, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """[ROWS, 4 * WORDS] from four [ROWS, WORDS]: the elements in the first place of each word, the second, ..."""
    return tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), [ROWS, 4 * WORDS])


@triton.jit
def round_up(scales):
    """float32 values of what `round_up` of `kv_quantisation.py` returns."""
    bits = scales.to(tl.int32, bitcast=True) + tl.where(scales == scales, 0xFFFF, 0)
    return (bits & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def load_scales(scales_head_ptr, slots, stride_slot, valid, FORMAT: tl.constexpr):
    """float32 scales [N] of keys and of values of one head: `scales_head_ptr` has both in one int32 for each slot.

    Both include `code_unit`; 0 where not `valid`.
    """
    pairs = tl.load(scales_head_ptr + slots * stride_slot, mask=valid, other=0)
    k_scales = (pairs << 16).to(tl.float32, bitcast=True)
    v_scales = (pairs & -0x10000).to(tl.float32, bitcast=True)
    return k_scales * code_unit(FORMAT), v_scales * code_unit(FORMAT)


@triton.jit
def log2_of_scales(scales):
    """log2 of scales, which are no subnormal numbers: one instruction where `tl.log2` is a polynomial."""
    if _INTERPRETED:
        return tl.log2(scales)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [scales], dtype=tl.float32, is_pure=True, pack=1
    )

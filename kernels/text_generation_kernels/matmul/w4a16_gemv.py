"""W4A16 GEMV of one token with 4-bit codes in groups of 128, in integer arithmetic.

The formula and layouts are those of `weight_only_linear`, which calls it where no table looks codes up. As in
`bf16_gemv.py` a thread block keeps whole rows of codes in registers and prefetches them before `griddepcontrol.wait`.

A copy of the same bytes leaves time for 3.4 instructions for each code, and float arithmetic alone takes 3: one to
extract the code, one to convert it, one to multiply and add. So codes stay integers, and one instruction (`dp4a`)
multiplies four of them by four bytes and adds up: 2.8 instructions for each code in all.

The inputs become integers of 16 bits, two bytes each. The eight inputs of a word (`group_quantisation.py`) share an
exponent, that of the largest of them, so the error is at most 2 ** -15 of that one: bfloat16 keeps 8 bits of each
input, so nothing is lost of those above 1/128 of the largest. Sums of a word are below 2 ** 22 and exact; in the last
bits of 1.5 * 2 ** 23 they are a float32 without a conversion.

Bytes floor: outputs * inputs / 2, and the scales. On an H200 28672 x 4096 takes 20.4 us after a norm.
Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from .group_quantisation import BLOCK, PackedMatrix
from .rows import store_outputs, weight_rows_of

_WORDS = tl.constexpr(BLOCK // 8)
"""Words of a block of inputs."""
_LONGEST_WHOLE = 1024
"""The most words of rows that are prefetched whole; longer ones are loaded in steps."""
_SHIFT = tl.constexpr(12582912.0)
_SHIFT_BITS = tl.constexpr(0x4B400000)
# A word's planes 0 and 2 are the low halves of its bytes, 1 and 3 the high ones.
_DOTS = tl.constexpr(
    "{ .reg .b32 even, odd, high, low; and.b32 even, $1, 0x0f0f0f0f; shr.u32 odd, $1, 4; and.b32 odd, odd, 0x0f0f0f0f;"
    " dp4a.s32.u32 high, $2, even, 0; dp4a.s32.u32 high, $3, odd, high;"
    " dp4a.u32.u32 low, $4, even, $6; dp4a.u32.u32 low, $5, odd, low; mad.lo.s32 $0, high, 256, low; }"
)
_BYTES = tl.constexpr(
    "{ .reg .b32 a, b; prmt.b32 a, $2, $3, 0x5140; prmt.b32 b, $4, $5, 0x5140;"
    " prmt.b32 $0, a, b, 0x7632; prmt.b32 $1, a, b, 0x5410; }"
)


@triton.jit
def _plain_dot(left, right, SIGNED: tl.constexpr):
    """`dp4a` of the bytes of `left` and the low halves of the bytes of `right`."""
    total = 0
    for byte in tl.static_range(4):
        one = left << (24 - 8 * byte) >> 24
        total += (one if SIGNED else one & 255) * (right >> 8 * byte & 15)
    return total


@triton.jit
def _dots(words, even_high, odd_high, even_low, odd_low, start, PLAIN: tl.constexpr):
    """`start` plus the dot products of each word's codes and inputs."""
    if PLAIN:
        odd = words >> 4
        high = _plain_dot(even_high, words, True) + _plain_dot(odd_high, odd, True)
        low = _plain_dot(even_low, words, False) + _plain_dot(odd_low, odd, False)
        return high * 256 + low + start
    else:
        return tl.inline_asm_elementwise(
            _DOTS,
            "=r,r,r,r,r,r,r",
            [words, even_high, odd_high, even_low, odd_low, start],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def _bytes(a, b, c, d, PLAIN: tl.constexpr):
    """High bytes, and low bytes, of four integers of 16 bits, each four as a word."""
    if PLAIN:
        high = a >> 8 & 255 | (b >> 8 & 255) << 8 | (c >> 8 & 255) << 16 | d >> 8 << 24
        low = a & 255 | (b & 255) << 8 | (c & 255) << 16 | d << 24
        return high, low
    else:
        return tl.inline_asm_elementwise(
            _BYTES, "=r,=r,r,r,r,r", [a, b, c, d], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )


@triton.jit
def _floats(pairs, FP16: tl.constexpr):
    """Both numbers of 16 bits in a word."""
    if FP16:
        first = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        first = (pairs << 16).to(tl.float32, bitcast=True)
        second = (pairs & -65536).to(tl.float32, bitcast=True)
    return first, second


@triton.jit
def _largest(first, second):
    """Bits of absolute values have their order, and NaN above all."""
    return tl.maximum(first.to(tl.int32, bitcast=True) & 0x7FFFFFFF, second.to(tl.int32, bitcast=True) & 0x7FFFFFFF)


@triton.jit
def _integers(first, second, inverse):
    """The inputs times a power of two (`inverse`), rounded, below 2 ** 15."""
    first = (first * inverse + _SHIFT).to(tl.int32, bitcast=True) - _SHIFT_BITS
    second = (second * inverse + _SHIFT).to(tl.int32, bitcast=True) - _SHIFT_BITS
    return first, second


@triton.jit
def _inputs(x_ptr, left, BLOCK_W: tl.constexpr, FP16: tl.constexpr, PLAIN: tl.constexpr):
    """For each of BLOCK_W words the bytes of its inputs, their sum, and what 1 stands for. `left`: pairs from here on.

    Inputs lie by plane, and come to the words through shared memory once.
    """
    places = tl.arange(0, BLOCK_W * 4)
    pairs = tl.load(x_ptr + places, mask=places < left, other=0)
    pairs = tl.permute(tl.reshape(pairs, [BLOCK_W // _WORDS, 2, 4, 16]), [0, 3, 1, 2])
    even, odd = tl.split(tl.reshape(pairs, [BLOCK_W, 2, 2]))
    plane_0, plane_2 = tl.split(even)
    plane_1, plane_3 = tl.split(odd)
    a0, b0 = _floats(plane_0, FP16)
    a1, b1 = _floats(plane_1, FP16)
    a2, b2 = _floats(plane_2, FP16)
    a3, b3 = _floats(plane_3, FP16)
    most = tl.maximum(tl.maximum(_largest(a0, b0), _largest(a1, b1)), tl.maximum(_largest(a2, b2), _largest(a3, b3)))
    # Not below 2 ** -95, so that its inverse is a number too.
    exponent = tl.maximum(most & 0x7F800000, 32 << 23)
    inverse = ((254 << 23) - exponent + (14 << 23)).to(tl.float32, bitcast=True)
    unit = tl.where(exponent == 0x7F800000, 0x7FC00000, exponent - (14 << 23)).to(tl.float32, bitcast=True)
    a0, b0 = _integers(a0, b0, inverse)
    a1, b1 = _integers(a1, b1, inverse)
    a2, b2 = _integers(a2, b2, inverse)
    a3, b3 = _integers(a3, b3, inverse)
    even_high, even_low = _bytes(a0, a2, b0, b2, PLAIN)
    odd_high, odd_low = _bytes(a1, a3, b1, b3, PLAIN)
    return even_high, odd_high, even_low, odd_low, a0 + b0 + a1 + b1 + a2 + b2 + a3 + b3, unit


@triton.jit
def _partial_dots(read, x_ptr, left, ZEROS: tl.constexpr, FP16: tl.constexpr, PLAIN: tl.constexpr):
    """[BLOCK_N, BLOCK_W / 4] float32: sums over what one thread has, of what `_read` returned."""
    words = read[0]
    scales = read[1]
    BLOCK_N: tl.constexpr = words.shape[0]
    BLOCK_W: tl.constexpr = words.shape[1]
    BLOCKS: tl.constexpr = BLOCK_W // _WORDS
    even_high, odd_high, even_low, odd_low, total, unit = _inputs(x_ptr, left, BLOCK_W, FP16, PLAIN)
    # A zero that is not given is 8.
    start = (total * 0 if ZEROS else total * -8) + _SHIFT_BITS
    sums = _dots(
        words, even_high[None, :], odd_high[None, :], even_low[None, :], odd_low[None, :], start[None, :], PLAIN
    )
    # Words 2 j are of a block's first group, 2 j + 1 of its second.
    values = sums.to(tl.float32, bitcast=True) - _SHIFT
    if ZEROS:
        total = tl.reshape(total.to(tl.float32), [1, BLOCKS, _WORDS // 2, 2])
        values = tl.reshape(values, [BLOCK_N, BLOCKS, _WORDS // 2, 2]) - total * read[2].to(tl.float32)[:, :, None, :]
        values = tl.reshape(values, [BLOCK_N, BLOCK_W])
    values *= unit[None, :]
    values = tl.sum(tl.reshape(values, [BLOCK_N, BLOCKS, _WORDS // 4, 2, 2]), axis=3)
    values *= scales.to(tl.float32)[:, :, None, :]
    return tl.sum(tl.reshape(values, [BLOCK_N, BLOCK_W // 4, 2]), axis=2)


@triton.jit
def _read(packed_ptrs, scales_ptr, zeros_ptr, columns, places, words, outputs, step, MASK: tl.constexpr):
    """Words of one step, which no other thread block reads, with their scales and zeros. Past the end words and their
    inputs are 0.
    """
    begin = step * columns.shape[0]
    places += begin // _WORDS * outputs * 2
    if MASK:
        inside = (columns < words - begin)[None, :]
        codes = tl.load(packed_ptrs + begin, mask=inside, other=0, eviction_policy="evict_first")
        places = tl.minimum(places, words // _WORDS * outputs * 2 - 1)
    else:
        codes = tl.load(packed_ptrs + begin, eviction_policy="evict_first")
    scales = tl.load(scales_ptr + places)
    if zeros_ptr is None:
        return codes, scales
    else:
        return codes, scales, tl.load(zeros_ptr + places)


@triton.jit
def w4a16_gemv_kernel(
    x_ptr,  # [inputs / 2] int32: pairs of 16 bits
    packed_ptr,  # [outputs, words] int32
    scales_ptr,  # [blocks, outputs, 2]
    zeros_ptr,  # as scales_ptr, or None
    bias_ptr,  # [outputs] or None
    out_ptr,  # [outputs or, with ACTIVATION, outputs / 2]
    words,
    outputs,
    stride_packed_output,
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    FP16: tl.constexpr,  # whether x is float16, else bfloat16
    PLAIN: tl.constexpr,  # no inline PTX
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,  # a multiple of the words of a block
    STEPS: tl.constexpr,  # of BLOCK_W words
    MASK: tl.constexpr,  # whether BLOCK_W does not divide `words`
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs."""
    program = tl.program_id(0)
    rows = weight_rows_of(program, outputs, BLOCK_N, ACTIVATION is not None)
    columns = tl.arange(0, BLOCK_W)
    packed_ptrs = packed_ptr + rows.to(tl.int64)[:, None] * stride_packed_output + columns[None, :]
    blocks = tl.arange(0, BLOCK_W // _WORDS)[None, :, None]
    places = (blocks * outputs + rows[:, None, None]) * 2 + tl.arange(0, 2)[None, None, :]
    codes = _read(packed_ptrs, scales_ptr, zeros_ptr, columns, places, words, outputs, 0, MASK and STEPS == 1)
    wait_for_previous(PDL)
    launch_dependents(PDL)

    ZEROS: tl.constexpr = zeros_ptr is not None
    acc = _partial_dots(codes, x_ptr, words * 4, ZEROS, FP16, PLAIN)
    for step in range(1, STEPS):
        following = _read(packed_ptrs, scales_ptr, zeros_ptr, columns, places, words, outputs, step, MASK)
        acc += _partial_dots(following, x_ptr + step * BLOCK_W * 4, (words - step * BLOCK_W) * 4, ZEROS, FP16, PLAIN)

    store_outputs(tl.sum(acc, axis=1), bias_ptr, rows, out_ptr, program, outputs, ACTIVATION, BLOCK_N)


_launch = Launcher(
    w4a16_gemv_kernel, writes=("out",), reads_early=("packed", "scales", "zeros"), dependents="after the wait"
)


def w4a16_blocks(words: int) -> dict[str, int]:
    """Launch settings of `w4a16_gemv`."""
    if words > _LONGEST_WHOLE:
        return {"BLOCK_N": 16, "BLOCK_W": 512, "num_warps": 8}
    block_w = 1 << (words - 1).bit_length()
    return {"BLOCK_N": 8192 // block_w, "BLOCK_W": block_w, "num_warps": 4}


def w4a16_gemv(
    x: Tensor,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
) -> None:
    """Launches the GEMV: shapes as of `weight_only_linear`."""
    packed = weight.packed
    outputs, words = packed.shape
    config = w4a16_blocks(words)
    _launch(
        (triton.cdiv(outputs, config["BLOCK_N"]),),
        (x[0].view(torch.int32), packed, weight.scales, weight.zeros, bias, out),
        (words, outputs, packed.stride(0)),
        ACTIVATION=activation,
        FP16=x.dtype == torch.float16,
        PLAIN=not x.is_cuda or torch.version.cuda is None,
        STEPS=triton.cdiv(words, config["BLOCK_W"]),
        MASK=words % config["BLOCK_W"] != 0,
        **config,
    )

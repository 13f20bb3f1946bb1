"""NVFP4 GEMV of one token on Hopper (compute capability 9.0; Gluon): codes of e2m1, float8 scales of 16 inputs each.

The formula and layouts are those of `weight_only_linear`, which calls it. As in `w4a16_gemv.py` a thread block
prefetches its first codes before `griddepcontrol.wait`; here each warp has a block of 256 inputs of its own at a time.

A copy of the same bytes leaves time for some 3 instructions for each code. The sums of groups are short: what follows
them, by instructions of one thread, would take as many as the sums. So matrix instructions compute them, whose right
operand has a column for each of eight groups, in which the inputs of all others are 0: sums of eight groups come out,
each in a column of its own. A code becomes a float16 in 1.5 instructions (`e2m1_fp16`), 2.4 to 3 in all.

The inputs become float16 too. Those of a block share a power of two, which brings the largest to 2 ** 14 at least: of
bfloat16 nothing is lost above 2 ** -31 of it, of float16 nothing above 2 ** -28.

It is in Gluon so that all threads load what their matrix instructions take, and nothing goes through shared memory.
Triton's interpreter cannot run it; the tests compare it on a device. Bytes floor: outputs * inputs * 9 / 16.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..norm.activations import gated_activation
from ..runtime.launch import Launcher
from ..runtime.triton import cuda, gl, gluon, hopper, triton
from .code_conversion import e2m1_fp16
from .group_quantisation import BLOCK, PackedMatrix

_BLOCK = gl.constexpr(BLOCK)
_WORDS = gl.constexpr(BLOCK // 8)
_GROUP = gl.constexpr(16)
_COLUMNS = gl.constexpr(8)
"""Columns of a matrix instruction's right operand. A block's groups fill it twice, so that a thread's sums are of four
groups side by side: in both results of groups 4 t to 4 t + 3, two in columns 2 t and 2 t + 1 of each.
"""
_SCALES = gl.constexpr(
    tuple(
        "{ .reg .b16 part0, part1, l, h; .reg .b32 both; mov.b32 {part0, part1}, $2;"
        f" cvt.rn.f16x2.e4m3x2 both, part{part}; mov.b32 {{l, h}}, both; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }}"
        for part in range(2)
    )
)
_ROWS = 16
"""Outputs of a thread block."""
_WHOLE = 4096
"""Rows of so many inputs are prefetched whole: four warps have four blocks each. Of longer ones eight warps prefetch
two blocks each, and go on in a loop.
"""


@gluon.jit
def _weight_rows(program, outputs, BLOCK_N: gl.constexpr, PAIRS: gl.constexpr, layout: gl.constexpr):
    """As `weight_rows_of`, with a layout."""
    lanes = gl.arange(0, BLOCK_N, layout)
    if PAIRS:
        pairs = gl.minimum(program * (BLOCK_N // 2) + lanes // 2, outputs // 2 - 1)
        return pairs + lanes % 2 * (outputs // 2)
    else:
        return gl.minimum(program * BLOCK_N + lanes, outputs - 1)


@gluon.jit
def _read(word_ptrs, scale_ptrs, block, step, blocks, outputs, WARPS: gl.constexpr, MASK: gl.constexpr):
    """One block of each warp, which no other thread block reads: the first and the last words, which are of even and
    odd groups, and the scales, four in a word. Past the end words are 0.
    """
    word_ptrs += step * WARPS * _WORDS
    block += step * WARPS
    if MASK:
        inside = gl.convert_layout(block < blocks, gl.SliceLayout(1, gl.SliceLayout(2, word_ptrs.type.layout)))
        inside = inside[:, None, None]
        even = gl.load(word_ptrs, mask=inside, other=0, eviction_policy="evict_first")
        odd = gl.load(word_ptrs + _WORDS // 2, mask=inside, other=0, eviction_policy="evict_first")
        block = gl.minimum(block, blocks - 1)
    else:
        even = gl.load(word_ptrs, eviction_policy="evict_first")
        odd = gl.load(word_ptrs + _WORDS // 2, eviction_policy="evict_first")
    return even, odd, gl.load(scale_ptrs + (block * outputs * (_GROUP // 4))[:, None, None])


@gluon.jit
def left_operand(weights, result: gl.constexpr):
    """Weights [WARPS, BLOCK_N, 16] of one group as a left operand of sums with the layout `result`. A thread has four
    inputs side by side, which are two pairs eight apart there; and so they are in `right_operand`.
    """
    weights = weights.reshape([weights.shape[0], weights.shape[1], 4, 2, 2]).permute([0, 1, 3, 2, 4])
    weights = weights.reshape([weights.shape[0], weights.shape[1], _GROUP])
    return gl.convert_layout(weights, gl.DotOperandLayout(0, result, 2), assert_trivial=True)


@gluon.jit
def right_operand(x, result: gl.constexpr):
    """Inputs [WARPS, columns, 16] as a right operand [WARPS, 16, columns]."""
    x = x.reshape([x.shape[0], x.shape[1], 4, 2, 2]).permute([0, 3, 2, 4, 1]).reshape([x.shape[0], _GROUP, x.shape[1]])
    return gl.convert_layout(x, gl.DotOperandLayout(1, result, 2), assert_trivial=True)


@gluon.jit
def _only(x, column, COLUMN: gl.constexpr):
    """A right operand with zeros in all other columns. A multiplication is twice as fast as a choice."""
    one = gl.where(column == COLUMN, 0x3C003C00, 0)
    return gl.inline_asm_elementwise("mul.rn.f16x2 $0, $1, $2;", "=r,r,r,r", [x, one], x.dtype, is_pure=True, pack=2)


@gluon.jit
def _load_inputs(x_ptrs, places, left, MASK: gl.constexpr):
    if MASK:
        return gl.load(x_ptrs + places, mask=places < left, other=0.0).to(gl.float32)
    else:
        return gl.load(x_ptrs + places).to(gl.float32)


@gluon.jit
def _bits(x):
    """Of absolute values, which have their order, and NaN above all."""
    return x.to(gl.int32, bitcast=True) & 0x7FFFFFFF


@gluon.jit
def _scales(words, PART: gl.constexpr, layout: gl.constexpr):
    """Two of the four float8 in each word, as float32."""
    TWO: gl.constexpr = _SCALES[PART]
    first, second = gl.inline_asm_elementwise(TWO, "=r,=r,r", [words], (gl.float32, gl.float32), is_pure=True, pack=1)
    both = gl.join(first, second).reshape([words.shape[0], words.shape[1], _COLUMNS])
    return gl.convert_layout(both, layout, assert_trivial=True)


@gluon.jit
def _add_block(acc, read, x_ptrs, places, left, MASK: gl.constexpr):
    """`acc` [WARPS, BLOCK_N, 8] plus the scaled sums of what `_read` returned."""
    result: gl.constexpr = acc.type.layout
    first = _load_inputs(x_ptrs, places, left, MASK)
    second = _load_inputs(x_ptrs, places + 2 * _GROUP, left, MASK)
    # Not below 2 ** -95, so that its inverse is a number too.
    largest = gl.max(gl.max(gl.maximum(_bits(first), _bits(second)), axis=2), axis=1)
    exponent = gl.maximum(largest & 0x7F800000, 32 << 23)
    inverse = ((254 << 23) - exponent + (14 << 23)).to(gl.float32, bitcast=True)
    # Codes are times 2 ** -14 and inputs times 2 ** 14.
    unit = gl.where(exponent == 0x7F800000, 0x7FC00000, exponent).to(gl.float32, bitcast=True)
    unit = gl.convert_layout(unit, gl.SliceLayout(1, gl.SliceLayout(2, result)))[:, None, None]
    first = right_operand((first * inverse[:, None, None]).to(gl.float16), result)
    second = right_operand((second * inverse[:, None, None]).to(gl.float16), result)
    x = (first, second)
    column = gl.arange(0, _COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, first.type.layout)))[None, None, :]
    even = e2m1_fp16(read[0])
    odd = e2m1_fp16(read[1])
    nothing = gl.zeros_like(acc)
    for part in gl.static_range(2):
        sums = nothing
        for plane in gl.static_range(part, 8, 2):
            own = _only(x[part], column, plane // 2 * 2)
            sums = hopper.mma_v2(left_operand(even[plane], result), own, sums)
            own = _only(x[part], column, plane // 2 * 2 + 1)
            sums = hopper.mma_v2(left_operand(odd[plane], result), own, sums)
        acc += sums * (_scales(read[2], part, result) * unit)
    return acc


@gluon.jit
def nvfp4_gemv_kernel(
    x_ptr,  # [inputs]
    packed_ptr,  # int32 [outputs, blocks * 32]
    scales_ptr,  # int32 [blocks, outputs, 4]: four float8 each
    factors_ptr,  # [outputs] float32
    bias_ptr,  # [outputs] or None
    out_ptr,  # [outputs or, with ACTIVATION, outputs / 2]
    inputs,
    outputs,
    stride_packed_output,
    ACTIVATION: gl.constexpr,  # key of GATED, or None
    BLOCK_N: gl.constexpr,
    AHEAD: gl.constexpr,  # blocks that each warp prefetches
    STEPS: gl.constexpr,  # blocks of each warp, at least AHEAD
    MASK: gl.constexpr,  # whether the inputs are fewer
    PDL: gl.constexpr,
):
    """One thread block computes BLOCK_N outputs."""
    WARPS: gl.constexpr = gl.num_warps()
    PAIRS: gl.constexpr = ACTIVATION is not None
    result: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    fours: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 8, 4], [WARPS, 1, 1], [2, 1, 0])
    ones: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 8, 4], [WARPS, 1, 1], [2, 1, 0])
    program = gl.program_id(0)
    blocks = gl.cdiv(inputs, _BLOCK)
    warps = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, fours)))[:, None, None]
    rows = _weight_rows(program, outputs, BLOCK_N, PAIRS, gl.SliceLayout(0, gl.SliceLayout(2, fours)))
    in_group = gl.arange(0, _GROUP, gl.SliceLayout(0, gl.SliceLayout(1, fours)))[None, None, :]
    word_ptrs = packed_ptr + (rows.to(gl.int64) * stride_packed_output)[None, :, None] + (warps * _WORDS + in_group)
    rows = _weight_rows(program, outputs, BLOCK_N, PAIRS, gl.SliceLayout(0, gl.SliceLayout(2, ones)))
    in_row = gl.arange(0, _GROUP // 4, gl.SliceLayout(0, gl.SliceLayout(1, ones)))[None, None, :]
    scale_ptrs = scales_ptr + (rows * (_GROUP // 4))[None, :, None] + in_row
    block = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, ones)))
    held = ()
    for ahead in gl.static_range(AHEAD):
        held += (_read(word_ptrs, scale_ptrs, block, ahead, blocks, outputs, WARPS, MASK),)
    if PDL:
        cuda.gdc_wait()
        # All kernels before this one are finished, on which the next kernel relies.
        cuda.gdc_launch_dependents()

    column = gl.arange(0, _COLUMNS, gl.SliceLayout(0, gl.SliceLayout(2, fours)))
    groups = (column // 2 * 4 + column % 2)[None, :, None]
    places = warps * _BLOCK + (groups * _GROUP + in_group)
    acc = gl.zeros([WARPS, BLOCK_N, _COLUMNS], gl.float32, result)
    for step in range(STEPS - AHEAD):
        following = _read(word_ptrs, scale_ptrs, block, step + AHEAD, blocks, outputs, WARPS, MASK)
        begin = step * WARPS * _BLOCK
        acc = _add_block(acc, held[0], x_ptr + begin, places, inputs - begin, MASK)
        held = held[1:]
        held += (following,)
    for ahead in gl.static_range(AHEAD):
        begin = (STEPS - AHEAD + ahead) * WARPS * _BLOCK
        acc = _add_block(acc, held[ahead], x_ptr + begin, places, inputs - begin, MASK)

    stored: gl.constexpr = gl.BlockedLayout([2], [32], [WARPS], [0])
    sums = gl.convert_layout(gl.sum(gl.sum(acc, axis=2), axis=0), stored)
    rows = _weight_rows(program, outputs, BLOCK_N, PAIRS, stored)
    sums *= gl.load(factors_ptr + rows)
    if bias_ptr is not None:
        sums += gl.load(bias_ptr + rows).to(gl.float32)
    out = sums.to(out_ptr.dtype.element_ty)
    end = outputs
    at = program * BLOCK_N + gl.arange(0, BLOCK_N, stored)
    if PAIRS:
        gate, up = gl.split(out.to(gl.float32).reshape([BLOCK_N // 2, 2]))
        out = gated_activation(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty)
        at = program * (BLOCK_N // 2) + gl.arange(0, BLOCK_N // 2, out.type.layout)
        end = outputs // 2
    gl.store(out_ptr + at, out, mask=at < end)


_launch = Launcher(nvfp4_gemv_kernel, writes=("out",), reads_early=("packed", "scales"), dependents="after the wait")


def nvfp4_blocks(inputs: int) -> dict[str, int]:
    """Launch settings of `nvfp4_gemv`."""
    warps, most = (4, 4) if inputs <= _WHOLE else (8, 2)
    steps = -(-inputs // (warps * BLOCK))
    return {"BLOCK_N": _ROWS, "AHEAD": min(most, steps), "STEPS": steps, "num_warps": warps, "maxnreg": 128}


def nvfp4_gemv(x: Tensor, weight: PackedMatrix, bias: Tensor | None, out: Tensor, activation: str | None) -> None:
    """Launches the GEMV: shapes as of `weight_only_linear`."""
    launch_nvfp4_gemv(x, weight, bias, out, activation, nvfp4_blocks(x.shape[1]))


def launch_nvfp4_gemv(
    x: Tensor,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    config: Mapping[str, int],
) -> None:
    """The same with other launch settings."""
    packed, inputs = weight.packed, x.shape[1]
    _launch(
        (triton.cdiv(weight.outputs, config["BLOCK_N"]),),
        (x[0], packed, weight.scales.view(torch.int32), weight.factors, bias, out),
        (inputs, weight.outputs, packed.stride(0)),
        ACTIVATION=activation,
        MASK=inputs % (config["num_warps"] * BLOCK) != 0,
        **config,
    )

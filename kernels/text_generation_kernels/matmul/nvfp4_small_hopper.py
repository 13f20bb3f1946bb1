"""NVFP4 GEMM of 2 to 8 tokens on Hopper (compute capability 9.0; Gluon): codes of e2m1, float8 scales of 16 inputs.

The formula and layouts are those of `weight_only_linear`, which calls it. As in `nvfp4_gemv.py` each warp has blocks of
256 inputs of its own, all threads load what their matrix instructions take, and the first codes are prefetched before
`griddepcontrol.wait`. Weights are scaled, of which each is exact in 16 bits, so that sums of all groups add up in
registers; sums of warps are added at the end. A weight takes three instructions.

Triton's interpreter cannot run it; the tests compare it on a device. Bytes floor: outputs * inputs * 9 / 16.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..runtime.launch import Launcher
from ..runtime.triton import cuda, gl, gluon, hopper, triton
from .code_conversion import e2m1_fp16, float4, scaled_e2m1_is_less
from .group_quantisation import BLOCK, PackedMatrix
from .nvfp4_gemv import left_operand, right_operand

_BLOCK = gl.constexpr(BLOCK)
_WORDS = gl.constexpr(BLOCK // 8)
_GROUP = gl.constexpr(16)
# Four float8 to pairs of each: in float16 as they are, in bfloat16 times 2 ** 118, in two steps of 2 ** 119.
_SCALES_FP16 = gl.constexpr(
    "{ .reg .b16 l, h; .reg .b32 a, b; mov.b32 {l, h}, $4;"
    " cvt.rn.f16x2.e4m3x2 a, l; cvt.rn.f16x2.e4m3x2 b, h; prmt.b32 $0, a, a, 0x1010; prmt.b32 $1, a, a, 0x3232;"
    " prmt.b32 $2, b, b, 0x1010; prmt.b32 $3, b, b, 0x3232; }"
)
_SCALES_BF16 = gl.constexpr(
    "{ .reg .b32 a, b, f; mov.b32 f, 0x7b007b00; shl.b32 a, $4, 4; shr.u32 b, $4, 4;"
    " and.b32 a, a, 0x07f007f0; and.b32 b, b, 0x07f007f0; mul.rn.bf16x2 a, a, f; mul.rn.bf16x2 b, b, f;"
    " mul.rn.bf16x2 a, a, f; mul.rn.bf16x2 b, b, f; prmt.b32 $0, a, a, 0x1010; prmt.b32 $1, b, b, 0x1010;"
    " prmt.b32 $2, a, a, 0x3232; prmt.b32 $3, b, b, 0x3232; }"
)
_TIMES_FP16 = gl.constexpr("mul.rn.f16x2 $0, $1, $2;")
_TIMES_BF16 = gl.constexpr("mul.rn.bf16x2 $0, $1, $2;")


@gluon.jit
def _read(word_ptrs, scale_ptrs, warps, step, blocks, outputs, WARPS: gl.constexpr, MASK: gl.constexpr):
    """One block of each warp, which no other thread block reads: its first and last words, and four words of scales.
    Past the end words are 0.
    """
    word_ptrs += step * WARPS * _WORDS
    block = warps + step * WARPS
    if MASK:
        inside = (block < blocks)[:, None, None]
        words = (
            gl.load(word_ptrs, mask=inside, other=0, eviction_policy="evict_first"),
            gl.load(word_ptrs + _WORDS // 2, mask=inside, other=0, eviction_policy="evict_first"),
        )
        block = gl.minimum(block, blocks - 1)
    else:
        words = (
            gl.load(word_ptrs, eviction_policy="evict_first"),
            gl.load(word_ptrs + _WORDS // 2, eviction_policy="evict_first"),
        )
    scale_ptrs += gl.expand_dims(block * outputs * (_GROUP // 4), 1)
    scales = ()
    for quarter in gl.static_range(4):
        scales += (gl.load(scale_ptrs + quarter),)
    return words, scales


@gluon.jit
def _scaled(weights, scales, FP16: gl.constexpr):
    """Weights [WARPS, BLOCK_N, 16] times [WARPS, BLOCK_N] pairs."""
    TIMES: gl.constexpr = _TIMES_FP16 if FP16 else _TIMES_BF16
    scales = gl.expand_dims(scales, 2)
    return gl.inline_asm_elementwise(TIMES, "=r,r,r,r", [weights, scales], weights.dtype, is_pure=True, pack=2)


@gluon.jit
def _add_block(acc, read, x_ptrs, here, left, MASK: gl.constexpr):
    """`acc` [WARPS, BLOCK_N, BLOCK_M] plus the matmul over a block of each warp, of what `_read` returned."""
    result: gl.constexpr = acc.type.layout
    FP16: gl.constexpr = x_ptrs.dtype.element_ty == gl.float16
    SCALES: gl.constexpr = _SCALES_FP16 if FP16 else _SCALES_BF16
    fours: gl.constexpr = x_ptrs.type.layout
    in_group = gl.arange(0, _GROUP, gl.SliceLayout(0, gl.SliceLayout(1, fours)))[None, None, :]
    words = read[0]
    planes = (e2m1_fp16(words[0]), e2m1_fp16(words[1])) if FP16 else (float4(words[0]), float4(words[1]))
    for quarter in gl.static_range(4):
        scales = gl.inline_asm_elementwise(
            SCALES, "=r,=r,=r,=r,r", [read[1][quarter]], (gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1
        )
        for index in gl.static_range(4):
            begin = (quarter * 4 + index) * _GROUP
            exists = here & (in_group < left - begin) if MASK else here
            x = gl.load(x_ptrs + begin, mask=exists, other=0.0)
            weights = _scaled(planes[index % 2][quarter * 2 + index // 2], scales[index], FP16)
            acc = hopper.mma_v2(left_operand(weights, result), right_operand(x, result), acc)
    return acc


@gluon.jit(do_not_specialize=["tokens"])
def nvfp4_small_hopper_kernel(
    x_ptr,  # [tokens, inputs]
    packed_ptr,  # int32 [outputs, blocks * 32]
    scales_ptr,  # int32 [blocks, outputs, 4]: four float8 each
    factors_ptr,  # [outputs] float32
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs]
    inputs,
    outputs,
    stride_x_token,
    stride_packed_output,
    stride_out_token,
    tokens,
    BLOCK_M: gl.constexpr,  # at least tokens, a multiple of 8
    BLOCK_N: gl.constexpr,
    STEPS: gl.constexpr,  # blocks of each warp
    MASK: gl.constexpr,  # whether the inputs are fewer
    PDL: gl.constexpr,
):
    """One thread block computes BLOCK_N outputs of all tokens."""
    WARPS: gl.constexpr = gl.num_warps()
    result: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    fours: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 8, 4], [WARPS, 1, 1], [2, 1, 0])
    of_warps: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, fours))
    of_rows: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, fours))
    first = gl.program_id(0) * BLOCK_N
    blocks = gl.cdiv(inputs, _BLOCK)
    warps = gl.arange(0, WARPS, of_warps)
    # Rows past the end read the last one, and are not stored.
    rows = gl.minimum(first + gl.arange(0, BLOCK_N, of_rows), outputs - 1)
    in_group = gl.arange(0, _GROUP, gl.SliceLayout(0, gl.SliceLayout(1, fours)))[None, None, :]
    word_ptrs = packed_ptr + (rows.to(gl.int64) * stride_packed_output)[None, :, None]
    word_ptrs += (warps * _WORDS)[:, None, None] + in_group
    scale_ptrs = scales_ptr + gl.expand_dims(rows * (_GROUP // 4), 0)
    held = _read(word_ptrs, scale_ptrs, warps, 0, blocks, outputs, WARPS, MASK)
    if PDL:
        cuda.gdc_wait()
        # All kernels before this one are finished, on which the next kernel relies.
        cuda.gdc_launch_dependents()

    members = gl.arange(0, BLOCK_M, of_rows)
    here = (members < tokens)[None, :, None]
    x_ptrs = x_ptr + (members.to(gl.int64) * stride_x_token)[None, :, None]
    x_ptrs += (warps * _BLOCK)[:, None, None] + in_group
    left = inputs - (warps * _BLOCK)[:, None, None]
    acc = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, result)
    for step in range(STEPS - 1):
        following = _read(word_ptrs, scale_ptrs, warps, step + 1, blocks, outputs, WARPS, MASK)
        begin = step * WARPS * _BLOCK
        acc = _add_block(acc, held, x_ptrs + begin, here, left - begin, MASK)
        held = following
    begin = (STEPS - 1) * WARPS * _BLOCK
    acc = _add_block(acc, held, x_ptrs + begin, here, left - begin, MASK)

    stored: gl.constexpr = gl.BlockedLayout([1, 1], [16, 2], [1, WARPS], [0, 1])
    sums = gl.convert_layout(gl.sum(acc, axis=0), stored)
    rows = first + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    exists = rows < outputs
    # Weights are as those of `scaled_e2m1`.
    less: gl.constexpr = scaled_e2m1_is_less(x_ptr.dtype.element_ty)
    sums *= (gl.load(factors_ptr + rows, mask=exists, other=0.0) * less)[:, None]
    if bias_ptr is not None:
        sums += gl.load(bias_ptr + rows, mask=exists, other=0.0).to(gl.float32)[:, None]
    members = gl.arange(0, BLOCK_M, gl.SliceLayout(0, stored))
    out_ptrs = out_ptr + (members.to(gl.int64) * stride_out_token)[None, :] + rows[:, None]
    gl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=(members < tokens)[None, :] & exists[:, None])


_launch = Launcher(
    nvfp4_small_hopper_kernel, writes=("out",), reads_early=("packed", "scales"), dependents="after the wait"
)


def nvfp4_small_hopper(
    x: Tensor, weight: PackedMatrix, bias: Tensor | None, out: Tensor, config: Mapping[str, int]
) -> None:
    """Launches the kernel: shapes as of `weight_only_linear`, at most BLOCK_M tokens. `config`: BLOCK_M, BLOCK_N,
    num_warps, and maxnreg, the most registers of a thread.
    """
    tokens, inputs = x.shape
    at_once = config["num_warps"] * BLOCK
    _launch(
        (triton.cdiv(weight.outputs, config["BLOCK_N"]),),
        (x, weight.packed, weight.scales.view(torch.int32), weight.factors, bias, out),
        (inputs, weight.outputs, x.stride(0), weight.packed.stride(0), out.stride(0)),
        (tokens,),
        STEPS=triton.cdiv(inputs, at_once),
        MASK=inputs % at_once != 0,
        **config,
    )

"""Group-quantised weights to a 16-bit matrix.

    out[n, k] = (code[n, k] - zero[n, k's group]) * scale[n, k's group], or table[code] * scale

Layouts: `packed` as `pack_codes` makes it, or float8 `[outputs, inputs]`; `scales` and `zeros` as `pack_scales` makes
them, with the `group_size` that it returns (0: all inputs are one group); `table` [16] float32 or None; `out`
[outputs, inputs]; unit stride in the last dimension. Zeros that are not given are 2 ** (bits - 1). Views of some
outputs are allowed. Computed in float32, rounded once.

`weight_only_linear` calls it for many tokens, where a 16-bit matrix and cuBLAS are fastest.
Bytes floor: outputs * inputs * (bits / 8 + 2). On an H200 28672 x 4096 takes 75.5 us, 92 % of a copy.
Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton
from .code_conversion import eight_bits, float8_scales, load_table, lookups, nibbles, plain_plane
from .group_quantisation import BLOCK, PackedMatrix

_BLOCK_N = 32
_WARPS = 8


@triton.jit
def dequantise_kernel(
    packed_ptr,  # int32 [outputs, blocks * 32], or uint8 [outputs, inputs]
    scales_ptr,  # [blocks, outputs, GROUPS], or [1, outputs] where GROUPS is 1; int8 are float8
    zeros_ptr,  # as scales_ptr, or None
    table_ptr,  # [16] float32 or None
    factors_ptr,  # [outputs] float32, with scales of float8, or None
    out_ptr,  # [outputs, inputs]
    inputs,
    stride_packed_output,
    stride_scales_block,
    stride_zeros_block,
    stride_out_output,
    outputs,
    FLOAT8: tl.constexpr,  # uint8 are the bytes of float8
    GROUPS: tl.constexpr,  # in 256 inputs; 1: all inputs are one group
    PLAIN: tl.constexpr,  # no inline PTX
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block writes 256 inputs of BLOCK_N outputs."""
    FOUR: tl.constexpr = packed_ptr.dtype.element_ty == tl.int32
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    FP16: tl.constexpr = tl.float16 == DTYPE
    BASE: tl.constexpr = (0 if table_ptr is not None else 1024 if FP16 else 128) if FOUR else -128
    SHIFTED: tl.constexpr = zeros_ptr is not None or (FOUR and table_ptr is None)
    block = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    here = (rows < outputs)[:, None]
    rows = tl.minimum(rows, outputs - 1)
    columns = tl.arange(0, 32)[None, :]
    row_ptrs = packed_ptr + rows.to(tl.int64)[:, None] * stride_packed_output
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_out_output + columns
    wait_for_previous(PDL)
    if FOUR:
        block_ptrs = row_ptrs + block * 32
        if not PLAIN:
            words = tl.load(block_ptrs + columns, eviction_policy="evict_first")
            planes = nibbles(words, FP16) if table_ptr is None else lookups(words, load_table(table_ptr, FP16), FP16)
    for plane in tl.static_range(8):
        first = block * 256 + plane * 32
        inside = here & (columns < inputs - first)
        if FOUR:
            weight = plain_plane(block_ptrs, table_ptr, plane, DTYPE) if PLAIN else planes[plane]
        else:
            codes = tl.load(row_ptrs + first + columns, mask=inside, other=0)
            weight = eight_bits(codes, FLOAT8, DTYPE, PLAIN)
        weight = weight.to(tl.float32)
        if GROUPS > 8:
            group = rows[:, None] * GROUPS + 2 * plane + columns // 16
        else:
            group = rows * GROUPS + plane * GROUPS // 8
        scale_block = block * (GROUPS > 1)
        if SHIFTED:
            if zeros_ptr is None:
                weight -= BASE + 8
            else:
                zero = tl.load(zeros_ptr + scale_block.to(tl.int64) * stride_zeros_block + group)
                zero = zero.to(tl.float32)
                weight -= (zero if GROUPS > 8 else zero[:, None]) + BASE
        scale = tl.load(scales_ptr + scale_block.to(tl.int64) * stride_scales_block + group)
        scale = scale.to(tl.float32) if factors_ptr is None else float8_scales(scale, 0, tl.float32)
        weight *= scale if GROUPS > 8 else scale[:, None]
        if factors_ptr is not None:
            weight *= tl.load(factors_ptr + rows)[:, None]
        tl.store(out_ptrs + first, weight.to(DTYPE), mask=inside)
    launch_dependents(PDL)


_launch = Launcher(dequantise_kernel, writes=("out",), dependents="after the wait")


def dequantise_triton(weight: PackedMatrix, out: Tensor) -> None:
    """Triton implementation."""
    outputs, inputs = out.shape
    if out.element_size() != 2 or weight.groups == 0 or outputs == 0:
        dequantise_torch(weight, out)
        return
    packed, scales, zeros = weight.packed, weight.stored_scales, weight.zeros
    float8 = packed.is_floating_point()
    _launch(
        (triton.cdiv(inputs, BLOCK), triton.cdiv(outputs, _BLOCK_N)),
        (packed.view(torch.uint8) if float8 else packed, scales, zeros, weight.table, weight.factors, out),
        (
            inputs,
            packed.stride(0),
            scales.stride(0),
            scales.stride(0) if zeros is None else zeros.stride(0),
            out.stride(0),
            outputs,
        ),
        FLOAT8=float8,
        GROUPS=weight.groups,
        PLAIN=not out.is_cuda or torch.version.cuda is None,
        BLOCK_N=_BLOCK_N,
        num_warps=_WARPS,
    )


def dequantise_torch(weight: PackedMatrix, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    out.copy_(weight.values(out.shape[1]))


dequantise = register(dequantise_torch, mutates=("out",), triton=dequantise_triton)

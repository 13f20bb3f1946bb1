"""Grouped weight-only GEMM of group-quantised experts (`group_quantisation.py`); rows keep their 16 bits.

As in `weight_only_linear` the weight is the left operand, whose codes are dequantised in registers, so that rows are
the short side of a matrix instruction. Sums of a group are multiplied by its scales, or, where many rows share a
weight, the weights are, rounded to 16 bits (`FOLD`). So they are with groups of 16, of which an instruction's inputs
have several. A product of e2m1 and a float8 scale (NVFP4) is exact in 16 bits; sums are multiplied by the float32 of
the output.

Rows, outputs and epilogue are those of `_grouped_gemm_tiles.py`. `moe_experts` calls it.
Lab: docs/lab/2026-11-mixture-of-experts.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..matmul.code_conversion import (
    eight_bits,
    float4,
    load_table,
    lookups,
    nibbles,
    plain_plane,
    scaled_e2m1,
    scaled_e2m1_is_less,
)
from ..matmul.group_quantisation import BLOCK, PLANES
from ..matmul.rows import weight_rows_of
from ..matmul.weight_only_tiles import of_plane, scales_of_groups
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import GROUP, has_pairs, rows_of_tile, store_rows, tile_of_program
from .expert_matrix import ExpertMatrix
from .expert_rows import ExpertRows

_SMALLEST_TILE = 8
"""The fewest rows of a matrix instruction's right operand."""


@triton.jit
def weight_only_grouped_gemm_kernel(
    x_ptr,  # up: [tokens, inputs]; down: [rows, inputs], in the order of the rows
    packed_ptr,  # int32 [experts, outputs, blocks * 32], or uint8 [experts, outputs, inputs]
    scales_ptr,  # [blocks, experts * outputs, GROUPS], or [1, experts * outputs] where GROUPS is 1; int8 are float8
    zeros_ptr,  # as scales_ptr, or None
    table_ptr,  # [16] float32 or None
    bias_ptr,  # [experts, outputs] or None
    factors_ptr,  # [experts * outputs] float32, with scales of float8, or None
    ids_ptr,  # [rows] int32
    order_ptr,  # [rows] int32, None where DIRECT
    tiles_ptr,  # [capacity, 3] int32, None where DIRECT
    num_tiles_ptr,  # [1] int32, None where DIRECT
    row_weights_ptr,  # [rows] float32, None for up
    delta_ptr,  # [rows, outputs], what adapters add, in the order of the rows, or None
    out_ptr,  # up: [rows, outputs / 2 or outputs], in the order of the rows; down: [rows, outputs]
    inputs,
    outputs,
    all_outputs,  # of all experts
    stride_x_row,
    stride_packed_output,
    SLOTS: tl.constexpr,  # rows of one token
    HELD: tl.constexpr,  # experts of this rank, where other ranks have some; else None
    ACTIVATION: tl.constexpr,  # key of GATED or ALONE for up, None for down
    DIRECT: tl.constexpr,
    FLOAT8: tl.constexpr,  # uint8 are the bytes of float8
    FLOAT4: tl.constexpr,  # codes are e2m1 and converted without the table; only with FOLD
    GROUPS: tl.constexpr,  # in 256 inputs; 1: all inputs are one group
    MASK_K: tl.constexpr,  # whether inputs are no whole blocks of 256
    FOLD: tl.constexpr,  # weights are scaled and rounded to 16 bits, not sums of a group
    PLAIN: tl.constexpr,  # no inline PTX
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of one tile's rows."""
    FOUR: tl.constexpr = packed_ptr.dtype.element_ty == tl.int32
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    FP16: tl.constexpr = tl.float16 == DTYPE
    BLOCK_K: tl.constexpr = 256
    COUNT: tl.constexpr = GROUPS if GROUPS > 1 else 2
    HALVES: tl.constexpr = COUNT > 8
    PARTS: tl.constexpr = COUNT // 2 if HALVES else COUNT
    GROUP_K: tl.constexpr = BLOCK_K // PARTS
    DEPTH: tl.constexpr = 32 if FOUR else GROUP_K
    # Codes are scaled at once.
    SCALED: tl.constexpr = FLOAT4 and factors_ptr is not None
    # What a code in registers is above its value where zeros are not given.
    BASE: tl.constexpr = (0 if table_ptr is not None else 1024 if FP16 else 128) if FOUR else -128
    SHIFTED: tl.constexpr = zeros_ptr is not None or (FOUR and table_ptr is None)
    blocks = tl.cdiv(outputs, BLOCK_N)
    table = None
    if table_ptr is not None and not (FLOAT4 or PLAIN):
        table = load_table(table_ptr, FP16)
    wait_for_previous(PDL)
    tile, block = tile_of_program(ids_ptr, num_tiles_ptr, blocks, HELD, DIRECT, GROUP)
    if block >= blocks:
        return
    expert, members, here, own, x_rows = rows_of_tile(
        ids_ptr, order_ptr, tiles_ptr, tile, SLOTS, ACTIVATION is not None, DIRECT, BLOCK_M
    )
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, has_pairs(ACTIVATION))
    all_rows = expert.to(tl.int64) * outputs + weight_rows
    columns = tl.arange(0, DEPTH)[None, :]
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * stride_x_row + columns
    packed_ptrs = packed_ptr + all_rows[:, None] * stride_packed_output
    step = BLOCK_K // 8 if FOUR else BLOCK_K
    if GROUPS > 1:
        row_places = all_rows[:, None] * COUNT + tl.arange(0, COUNT)[None, :]
        next_scales = tl.load(scales_ptr + row_places)
        if zeros_ptr is not None:
            next_zeros = tl.load(zeros_ptr + row_places)
    elif zeros_ptr is not None:
        whole_zero = tl.load(zeros_ptr + all_rows).to(tl.float32) + BASE
    num_blocks = tl.cdiv(inputs, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for k_block in range(num_blocks):
        if FOUR and not PLAIN:
            words = tl.load(packed_ptrs + tl.arange(0, 32)[None, :], eviction_policy="evict_first")
            if SCALED:
                planes = scaled_e2m1(words, next_scales, DTYPE)
            elif FLOAT4:
                planes = float4(words)
            elif table_ptr is not None:
                planes = lookups(words, table, FP16)
            else:
                planes = nibbles(words, FP16)
        if GROUPS > 1:
            # Scales of the next block, because Triton does not pipeline these loads.
            row_places += tl.where(k_block + 1 < num_blocks, all_outputs * COUNT, 0)
            following_scales = tl.load(scales_ptr + row_places)
            if not SCALED:
                scales = scales_of_groups(next_scales, COUNT, DTYPE)
            if zeros_ptr is not None:
                following_zeros = tl.load(zeros_ptr + row_places)
                zeros = scales_of_groups(next_zeros, COUNT, DTYPE)
        for group in tl.static_range(PARTS):
            partial = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32) if GROUPS > 1 and not FOLD else acc
            for dot in tl.static_range(GROUP_K // DEPTH):
                first = group * GROUP_K + dot * DEPTH
                if MASK_K:
                    inside = columns < inputs - k_block * BLOCK_K - first
                    x = tl.load(x_ptrs + first, mask=here[:, None] & inside, other=0.0)
                else:
                    x = tl.load(x_ptrs + first, mask=here[:, None], other=0.0)
                if FOUR:
                    if PLAIN:
                        weight = plain_plane(packed_ptrs, table_ptr, group * (GROUP_K // DEPTH) + dot, DTYPE)
                    else:
                        weight = planes[group * (GROUP_K // DEPTH) + dot]
                else:
                    if MASK_K:
                        codes = tl.load(packed_ptrs + first + columns, mask=inside, other=0)
                    else:
                        codes = tl.load(packed_ptrs + first + columns, eviction_policy="evict_first")
                    weight = eight_bits(codes, FLOAT8, DTYPE, PLAIN)
                if SHIFTED:
                    if zeros_ptr is None:
                        weight -= BASE + 8
                    elif HALVES:
                        weight -= of_plane(zeros, group, True, None, DTYPE) + BASE
                    elif GROUPS > 1:
                        weight -= (zeros[group] + BASE).to(DTYPE)[:, None]
                    else:
                        weight -= whole_zero.to(DTYPE)[:, None]
                if not SCALED and (FLOAT4 or (FOLD and GROUPS > 1)):
                    weight *= of_plane(scales, group, HALVES, 2.0**126 if FLOAT4 else None, DTYPE)
                partial = tl.dot(weight, x.T, partial)
            if GROUPS > 1 and not FOLD:
                acc += partial * scales[group][:, None]
            else:
                acc = partial
        x_ptrs += BLOCK_K
        packed_ptrs += step
        if GROUPS > 1:
            next_scales = following_scales
            if zeros_ptr is not None:
                next_zeros = following_zeros
    launch_dependents(PDL)

    if GROUPS == 1:
        acc *= tl.load(scales_ptr + all_rows).to(tl.float32)[:, None]
    if factors_ptr is not None:
        factors = tl.load(factors_ptr + all_rows)
        acc *= (factors * scaled_e2m1_is_less(DTYPE) if SCALED else factors)[:, None]
    store_rows(
        tl.trans(acc), expert, block, members, own, here, weight_rows, bias_ptr, row_weights_ptr, delta_ptr, out_ptr,
        outputs, ACTIVATION, BLOCK_M, BLOCK_N,
    )  # fmt: skip


_launch = Launcher(weight_only_grouped_gemm_kernel, writes=("out",), dependents="after the wait")


def weight_only_grouped_gemm(
    x: Tensor, matrix: ExpertMatrix, rows: ExpertRows, out: Tensor, config: Mapping[str, int]
) -> None:
    """Launches the up or the down GEMM."""
    packed, outputs = matrix.weight, matrix.outputs
    inputs = x.shape[1]
    order, tiles, num_tiles = rows.alignment or (None, None, None)
    num = rows.ids.numel() if tiles is None else tiles.shape[0]
    float8 = packed.is_floating_point()
    plain = not x.is_cuda or torch.version.cuda is None
    # In float16 only codes with scales of float8 are converted without the table.
    is_float4 = matrix.e2m1 and (x.dtype == torch.bfloat16 or matrix.factors is not None) and not plain
    scales = matrix.scales if matrix.factors is None or matrix.scales is None else matrix.scales.view(torch.int8)
    _launch(
        (num * triton.cdiv(outputs, config["BLOCK_N"]),),
        (
            *(x, packed.view(torch.uint8) if float8 else packed, scales, matrix.zeros),
            *(matrix.table, matrix.bias, matrix.factors),
            *(rows.ids, order, tiles, num_tiles, rows.weights, rows.delta, out),
        ),
        (inputs, outputs, matrix.experts * outputs, x.stride(0), packed.stride(1)),
        (),
        SLOTS=rows.ids.shape[1],
        HELD=rows.held,
        ACTIVATION=rows.activation,
        DIRECT=tiles is None,
        FLOAT8=float8,
        FLOAT4=is_float4,
        GROUPS=matrix.groups,
        MASK_K=inputs % BLOCK != 0,
        FOLD=bool(config["FOLD"]) or is_float4 or matrix.groups > PLANES,
        PLAIN=plain,
        BLOCK_M=max(rows.height, _SMALLEST_TILE),
        BLOCK_N=config["BLOCK_N"],
        GROUP=GROUP,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )

"""Grouped weight-only GEMM of group-quantised experts (`group_quantisation.py`); rows keep their 16 bits.

As in `weight_only_linear` the weight is the left operand, whose codes are dequantised in registers, so that rows are
the short side of a matrix instruction. Sums of a group are multiplied by its scales, or, where many rows share a
weight, the weights are, rounded to 16 bits (`FOLD`).

Rows, outputs and epilogue are those of `_grouped_gemm_tiles.py`. `moe_experts` calls it.
Lab: docs/lab/2026-11-mixture-of-experts.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..matmul.code_conversion import eight_bits, float4, load_table, lookups, nibbles, plain_plane
from ..matmul.group_quantisation import BLOCK
from ..matmul.rows import weight_rows_of
from ..matmul.weight_only_tiles import columns_of
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import GROUP, has_pairs, rows_of_tile, store_rows, tile_of_program
from .expert_matrix import ExpertMatrix


@triton.jit
def weight_only_grouped_gemm_kernel(
    x_ptr,  # up: [tokens, inputs]; down: [rows, inputs], in the order of the rows
    packed_ptr,  # int32 [experts, outputs, blocks * 32], or uint8 [experts, outputs, inputs]
    scales_ptr,  # [blocks, experts * outputs, GROUPS], or [1, experts * outputs] where GROUPS is 1
    zeros_ptr,  # as scales_ptr, or None
    table_ptr,  # [16] float32 or None
    bias_ptr,  # [experts, outputs] or None
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
    GROUP_K: tl.constexpr = BLOCK_K // COUNT
    DEPTH: tl.constexpr = 32 if FOUR else GROUP_K
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
            if FLOAT4:
                planes = float4(words)
            elif table_ptr is not None:
                planes = lookups(words, table, FP16)
            else:
                planes = nibbles(words, FP16)
        if GROUPS > 1:
            # Scales of the next block, because Triton does not pipeline these loads.
            row_places += tl.where(k_block + 1 < num_blocks, all_outputs * COUNT, 0)
            following_scales = tl.load(scales_ptr + row_places)
            scales = columns_of(next_scales, COUNT)
            if zeros_ptr is not None:
                following_zeros = tl.load(zeros_ptr + row_places)
                zeros = columns_of(next_zeros, COUNT)
        for group in tl.static_range(COUNT):
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
                    elif GROUPS > 1:
                        weight -= (zeros[group] + BASE).to(DTYPE)[:, None]
                    else:
                        weight -= whole_zero.to(DTYPE)[:, None]
                if FLOAT4:
                    weight *= (scales[group] * 2.0**126).to(DTYPE)[:, None]
                elif FOLD and GROUPS > 1:
                    weight *= scales[group].to(DTYPE)[:, None]
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
    store_rows(
        tl.trans(acc), expert, block, members, own, here, weight_rows, bias_ptr, row_weights_ptr, delta_ptr, out_ptr,
        outputs, ACTIVATION, BLOCK_M, BLOCK_N,
    )  # fmt: skip


_launch = Launcher(weight_only_grouped_gemm_kernel, writes=("out",), dependents="after the wait")


def weight_only_grouped_gemm(
    x: Tensor,
    matrix: ExpertMatrix,
    ids: Tensor,
    alignment: tuple[Tensor, Tensor, Tensor] | None,
    row_weights: Tensor | None,
    delta: Tensor | None,
    activation: str | None,
    block_m: int,
    config: Mapping[str, int],
    held: int | None,
    out: Tensor,
) -> None:
    """Launches the up or the down GEMM. `alignment` is what `moe_align` made for tiles of `block_m`, None for direct
    tiles. `held`: how many experts this rank has, where others have some.
    """
    packed, outputs = matrix.weight, matrix.outputs
    inputs = x.shape[1]
    order, tiles, num_tiles = alignment or (None, None, None)
    num = ids.numel() if tiles is None else tiles.shape[0]
    float8 = packed.is_floating_point()
    plain = not x.is_cuda or torch.version.cuda is None
    # In float16 a code's copies would overlap: the table looks it up.
    is_float4 = matrix.e2m1 and x.dtype == torch.bfloat16 and not plain
    _launch(
        (num * triton.cdiv(outputs, config["BLOCK_N"]),),
        (
            *(
                x,
                packed.view(torch.uint8) if float8 else packed,
                matrix.scales,
                matrix.zeros,
                matrix.table,
                matrix.bias,
            ),
            *(ids, order, tiles, num_tiles, row_weights, delta, out),
        ),
        (inputs, outputs, matrix.experts * outputs, x.stride(0), packed.stride(1)),
        (),
        SLOTS=ids.shape[1],
        HELD=held,
        ACTIVATION=activation,
        DIRECT=tiles is None,
        FLOAT8=float8,
        FLOAT4=is_float4,
        GROUPS=matrix.groups,
        MASK_K=inputs % BLOCK != 0,
        FOLD=bool(config["FOLD"]) or is_float4,
        PLAIN=plain,
        BLOCK_M=block_m,
        BLOCK_N=config["BLOCK_N"],
        GROUP=GROUP,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )

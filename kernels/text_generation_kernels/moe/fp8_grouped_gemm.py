"""Grouped W8A8 GEMM of float8 experts and float8 rows, for many tokens.

Where there are several tiles of rows, dequantising weights to 16 bits for each takes longer than the matrix
instructions, and tensor cores multiply float8 themselves. Sums leave the short accumulator after every 128 inputs
(DeepSeek-V3, 2024, section 3.3.2), where scales of blocks are applied as well.

Rows, outputs and epilogue are those of `_grouped_gemm_tiles.py`. `moe_experts` calls it.
Lab: docs/lab/2026-11-mixture-of-experts.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Mapping

from torch import Tensor

from ..matmul.rows import weight_rows_of
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import GROUP, has_pairs, rows_of_tile, store_rows, tile_of_program

BLOCK_K = 128
"""Inputs of a step, and of a block of scales."""


@triton.jit
def fp8_grouped_gemm_kernel(
    x_ptr,  # up: [tokens, inputs] float8; down: [rows, inputs], in the order of the rows
    x_scale_ptr,  # [tokens or rows] or [tokens or rows, blocks] float32
    weight_ptr,  # [experts, outputs, inputs] float8
    scales_ptr,  # [1, experts * outputs], or [pairs of blocks, experts * outputs, 2]
    bias_ptr,  # [experts, outputs] or None
    ids_ptr,  # [rows] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [capacity, 3] int32
    num_tiles_ptr,  # [1] int32
    row_weights_ptr,  # [rows] float32, None for up
    delta_ptr,  # [rows, outputs], what adapters add, in the order of the rows, or None
    out_ptr,  # up: [rows, outputs / 2 or outputs], in the order of the rows; down: [rows, outputs]
    inputs,
    outputs,
    all_outputs,  # of all experts
    stride_x_scale_row,
    SLOTS: tl.constexpr,  # rows of one token
    ACTIVATION: tl.constexpr,  # key of GATED or ALONE for up, None for down
    BLOCKS: tl.constexpr,  # whether scales are those of 128 inputs
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of one tile's rows."""
    blocks = tl.cdiv(outputs, BLOCK_N)
    wait_for_previous(PDL)
    tile, block = tile_of_program(ids_ptr, num_tiles_ptr, blocks, None, False, GROUP)
    if block >= blocks:
        return
    expert, members, here, own, x_rows = rows_of_tile(
        ids_ptr, order_ptr, tiles_ptr, tile, SLOTS, ACTIVATION is not None, False, BLOCK_M
    )
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, has_pairs(ACTIVATION))
    all_rows = expert.to(tl.int64) * outputs + weight_rows
    inner = tl.arange(0, BLOCK_K)[None, :]
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * inputs + inner
    weight_ptrs = weight_ptr + all_rows[:, None] * inputs + inner
    x_scale_ptrs = x_scale_ptr + x_rows.to(tl.int64) * stride_x_scale_row
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for begin in range(0, inputs, BLOCK_K):
        if MASK_K:
            inside = inner < inputs - begin
            x = tl.load(x_ptrs, mask=here[:, None] & inside, other=0.0)
            weight = tl.load(weight_ptrs, mask=inside, other=0.0)
        else:
            x = tl.load(x_ptrs, mask=here[:, None], other=0.0)
            weight = tl.load(weight_ptrs)
        if BLOCKS:
            number = begin // BLOCK_K
            x_scale = tl.load(x_scale_ptrs + number, mask=here, other=0.0)
            place = (number // 2).to(tl.int64) * all_outputs * 2 + number % 2
            scale = tl.load(scales_ptr + place + all_rows * 2).to(tl.float32)
            acc += tl.dot(x, weight.T) * x_scale[:, None] * scale[None, :]
        else:
            acc = tl.dot(x, weight.T, acc, max_num_imprecise_acc=128)
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    launch_dependents(PDL)

    if not BLOCKS:
        scale = tl.load(scales_ptr + all_rows).to(tl.float32)
        acc *= tl.load(x_scale_ptrs, mask=here, other=0.0)[:, None] * scale[None, :]
    store_rows(
        acc, expert, block, members, own, here, weight_rows, bias_ptr, row_weights_ptr, delta_ptr, out_ptr,
        outputs, ACTIVATION, BLOCK_M, BLOCK_N,
    )  # fmt: skip


_launch = Launcher(fp8_grouped_gemm_kernel, writes=("out",), dependents="after the wait")


def fp8_grouped_gemm(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    alignment: tuple[Tensor, Tensor, Tensor],
    row_weights: Tensor | None,
    delta: Tensor | None,
    activation: str | None,
    block_m: int,
    config: Mapping[str, int],
    out: Tensor,
) -> None:
    """Launches the up or the down GEMM, with tiles that `moe_align` made for `block_m`."""
    experts, outputs, inputs = weight.shape
    order, tiles, num_tiles = alignment
    _launch(
        (tiles.shape[0] * triton.cdiv(outputs, config["BLOCK_N"]),),
        (x, x_scale, weight, scales, bias, ids, order, tiles, num_tiles, row_weights, delta, out),
        (inputs, outputs, experts * outputs, x_scale.stride(0)),
        (),
        SLOTS=ids.shape[1],
        ACTIVATION=activation,
        BLOCKS=x_scale.dim() == 2,
        MASK_K=inputs % BLOCK_K != 0,
        BLOCK_M=block_m,
        BLOCK_N=config["BLOCK_N"],
        BLOCK_K=BLOCK_K,
        GROUP=GROUP,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )

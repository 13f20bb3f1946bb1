"""Grouped GEMM of experts in 16 or 32 bits; rows, outputs and epilogue are those of `_grouped_gemm_tiles.py`."""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Mapping

from torch import Tensor

from ..matmul.rows import weight_rows_of
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from ._grouped_gemm_tiles import GROUP, has_pairs, rows_of_tile, store_rows, tile_of_program


@triton.jit
def _tile_gemm(
    x_ptrs,
    x_valid,  # [BLOCK_M, 1]
    weight_ptrs,
    inputs,
    MASK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] float32: sums over all inputs, in the order of the inputs."""
    columns = tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for begin in range(0, inputs, BLOCK_K):
        if MASK_K:
            inside = columns < inputs - begin
            x = tl.load(x_ptrs, mask=x_valid & inside, other=0.0)
            weight = tl.load(weight_ptrs, mask=inside, other=0.0)
        else:
            x = tl.load(x_ptrs, mask=x_valid, other=0.0)
            weight = tl.load(weight_ptrs)
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    return acc


@triton.jit
def grouped_gemm_kernel(
    x_ptr,  # up: [tokens, inputs]; down: [rows, inputs], in the order of the rows
    weight_ptr,  # [experts, outputs, inputs]
    bias_ptr,  # [experts, outputs] or None
    order_ptr,  # [rows] int32
    tiles_ptr,  # [capacity, 3] int32
    num_tiles_ptr,  # [1] int32
    row_weights_ptr,  # [rows] float32, None for up
    delta_ptr,  # [rows, outputs], what adapters add, in the order of the rows, or None
    out_ptr,  # up: [rows, outputs / 2 or outputs], in the order of the rows; down: [rows, outputs]
    inputs,
    outputs,
    stride_x_row,
    stride_weight_expert,
    stride_weight_output,
    SLOTS: tl.constexpr,  # rows of one token
    ACTIVATION: tl.constexpr,  # key of GATED or ALONE for up, None for down
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,  # tiles that compute the same columns one after another, for the L2 cache
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of one tile's rows."""
    blocks = tl.cdiv(outputs, BLOCK_N)
    wait_for_previous(PDL)
    tile, block = tile_of_program(None, num_tiles_ptr, blocks, None, False, GROUP)
    if block >= blocks:
        return
    expert, members, here, own, x_rows = rows_of_tile(
        None, order_ptr, tiles_ptr, tile, SLOTS, ACTIVATION is not None, False, BLOCK_M
    )
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, has_pairs(ACTIVATION))
    inner = tl.arange(0, BLOCK_K)[None, :]
    x_ptrs = x_ptr + x_rows.to(tl.int64)[:, None] * stride_x_row + inner
    expert_ptr = weight_ptr + expert.to(tl.int64) * stride_weight_expert
    weight_ptrs = expert_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + inner
    acc = _tile_gemm(x_ptrs, here[:, None], weight_ptrs, inputs, MASK_K, BLOCK_M, BLOCK_N, BLOCK_K)
    launch_dependents(PDL)

    store_rows(
        acc, expert, block, members, own, here, weight_rows, bias_ptr, row_weights_ptr, delta_ptr, out_ptr,
        outputs, ACTIVATION, BLOCK_M, BLOCK_N,
    )  # fmt: skip


_launch = Launcher(grouped_gemm_kernel, writes=("out",), dependents="after the wait")
_TUNED_ELEMENT_BYTES = 2
"""Tiles are tuned for 16-bit types; float32 takes half as many inputs at a time, in as many bytes."""


def tile_columns(config: Mapping[str, int], element_bytes: int) -> int:
    """Inputs of one step of the GEMM."""
    return max(16, config["BLOCK_K"] * _TUNED_ELEMENT_BYTES // element_bytes)


def grouped_gemm(
    x: Tensor,
    weight: Tensor,
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
    _, outputs, inputs = weight.shape
    order, tiles, num_tiles = alignment
    block_k = tile_columns(config, x.element_size())
    _launch(
        (tiles.shape[0] * triton.cdiv(outputs, config["BLOCK_N"]),),
        (x, weight, bias, order, tiles, num_tiles, row_weights, delta, out),
        (inputs, outputs, x.stride(0), weight.stride(0), weight.stride(1)),
        (),
        SLOTS=ids.shape[1],
        ACTIVATION=activation,
        MASK_K=inputs % block_k != 0,
        BLOCK_M=block_m,
        BLOCK_N=config["BLOCK_N"],
        BLOCK_K=block_k,
        GROUP=GROUP,
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )

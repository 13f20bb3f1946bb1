"""W8A8 GEMM in Triton, for any number of tokens and scales by row or by block.

The formula and layouts are those of `w8a8_linear`, which calls it, as `w8a8_gated` and `w8a8_split_k` do. As in
`skinny_linear` the weight is the left operand, so that its rows fill a matrix instruction and tokens are the short
side, and split-K partials are reduced by the last thread block in their order, or left to the next kernel. The first
tiles of the weight are loaded before `griddepcontrol.wait`, so that memory is busy while small kernels run.

Sums of float8 leave the tensor core's short accumulator after every 128 inputs, as in DeepSeek-V3 (2024, section
3.3.2); those of int8 are exact. Scales of rows multiply the sum at the end, scales of 128 inputs the sum of those.

Bytes floor: outputs * inputs. Lab: docs/lab/2026-11-w8a8-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..norm.activations import gated_activation
from ..runtime.launch import Launcher, arrivals, is_last, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton

BLOCK = 128
"""Inputs, and outputs, that share a scale where scales are by block."""
_MOST_AHEAD = 32
"""The most tokens of a tile whose scales by block are prefetched: with 64 registers run short."""


@triton.jit
def _add_dot(
    acc,  # [BLOCK_N, BLOCK_M]
    weight,  # [BLOCK_N, BLOCK_K]
    x,  # [BLOCK_M, BLOCK_K]
    x_scale,  # [BLOCK_M], of this block of inputs, or None
    weight_scale,  # [BLOCK_N], of this block of inputs, or None
):
    """`acc` plus the matmul of two tiles."""
    WHOLE: tl.constexpr = weight.dtype == tl.int8
    if x_scale is not None or weight_scale is not None:
        dot = tl.dot(weight, x.T, out_dtype=tl.int32 if WHOLE else tl.float32).to(tl.float32)
        if x_scale is not None:
            dot *= x_scale[None, :]
        if weight_scale is not None:
            dot *= weight_scale[:, None]
        return acc + dot
    elif WHOLE:
        return tl.dot(weight, x.T, acc, out_dtype=tl.int32)
    else:
        return tl.dot(weight, x.T, acc, max_num_imprecise_acc=128)


@triton.jit(do_not_specialize=["tokens", "splits"])
def w8a8_gemm_kernel(
    x_ptr,  # [tokens, inputs]
    x_scale_ptr,  # [tokens] or [tokens, blocks] float32
    weight_ptr,  # [outputs, inputs]
    weight_scale_ptr,  # [outputs], [outputs, blocks] or [outputs / 128, blocks] float32
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs], with an activation [tokens, outputs / 2], or [splits, tokens, outputs] float32
    largest_ptr,  # [tokens, tiles] float32 or None: with an activation, the largest absolute value of each tile
    partial_ptr,  # [splits, tiles, BLOCK_N, BLOCK_M] float32, used where splits > 1
    arrived_ptr,  # [tiles] int32, zero before and after
    inputs,
    outputs,
    stride_x_token,
    stride_x_scale_token,
    stride_x_scale_block,
    stride_weight_output,
    stride_weight_scale_row,
    stride_weight_scale_block,
    stride_out_partial,
    stride_out_token,
    tokens,
    splits,
    ACTIVATION: tl.constexpr,  # key of GATED or None
    SPLIT_K_PARTIALS: tl.constexpr,  # whether `out` gets the partial of each split
    X_BLOCKS: tl.constexpr,  # whether x has a scale for each 128 inputs
    WEIGHT_BLOCKS: tl.constexpr,  # whether the weight has
    SCALE_ROWS: tl.constexpr,  # outputs that share a scale of the weight: 1 or 128
    MASK_K: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # 128 where there are scales by block
    AHEAD: tl.constexpr,  # weight tiles that are loaded before the wait
    STAGES: tl.constexpr,  # stages by which scales by block are prefetched, as the weight is; None: they are not
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of BLOCK_M tokens, over one of `splits` splits of the inputs.

    Thread blocks that share weight rows are neighbours, so that the weight is read once.
    """
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    split = tl.program_id(2)
    inputs_of_split = tl.cdiv(tl.cdiv(inputs, BLOCK_K), splits) * BLOCK_K
    begin = split * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    local_rows = tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_N + local_rows
    # Rows past the end read the last one, and are not stored.
    if ACTIVATION is None:
        weight_rows = tl.minimum(rows, outputs - 1)
    else:
        # Eight rows of gate, eight of up: a matrix instruction leaves both in the same threads.
        pairs = tl.program_id(1) * (BLOCK_N // 2) + local_rows // 16 * 8 + local_rows % 8
        weight_rows = tl.minimum(pairs, outputs // 2 - 1) + local_rows // 8 % 2 * (outputs // 2)
    members = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    here = members < tokens
    inner = tl.arange(0, BLOCK_K)[None, :]
    weight_tile_ptr = weight_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + begin + inner
    x_tile_ptr = x_ptr + members.to(tl.int64)[:, None] * stride_x_token + begin + inner
    x_scale_row_ptr = x_scale_ptr + members.to(tl.int64) * stride_x_scale_token
    weight_scale_row_ptr = weight_scale_ptr + (weight_rows // SCALE_ROWS).to(tl.int64) * stride_weight_scale_row
    if not WEIGHT_BLOCKS:
        weight_scale = tl.load(weight_scale_row_ptr)
    first_weights = ()
    for ahead in tl.static_range(AHEAD):
        at = begin + ahead * BLOCK_K
        inside = (inner < inputs - at) & (at < end) if MASK_K else at < end
        weight = tl.load(weight_tile_ptr, mask=inside, other=0.0, eviction_policy="evict_first")
        first_weights += (weight,)
        weight_tile_ptr += BLOCK_K

    wait_for_previous(PDL)
    if not X_BLOCKS:
        x_scale = tl.load(x_scale_row_ptr, mask=here, other=0.0)
    first_inputs = ()
    for ahead in tl.static_range(AHEAD):
        at = begin + ahead * BLOCK_K
        inside = (inner < inputs - at) & (at < end) if MASK_K else at < end
        first_inputs += (tl.load(x_tile_ptr, mask=here[:, None] & inside, other=0.0),)
        x_tile_ptr += BLOCK_K
    BY_BLOCK: tl.constexpr = X_BLOCKS or WEIGHT_BLOCKS
    WHOLE: tl.constexpr = x_ptr.dtype.element_ty == tl.int8
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.int32 if WHOLE and not BY_BLOCK else tl.float32)
    for at in tl.range(begin + AHEAD * BLOCK_K, end, BLOCK_K, num_stages=STAGES):
        if X_BLOCKS:
            x_block_ptr = x_scale_row_ptr + at // BLOCK_K * stride_x_scale_block
            x_block_scale = tl.load(x_block_ptr, mask=here, other=0.0)
        else:
            x_block_scale = None
        if WEIGHT_BLOCKS:
            weight_block_scale = tl.load(weight_scale_row_ptr + at // BLOCK_K * stride_weight_scale_block)
        else:
            weight_block_scale = None
        if MASK_K:
            inside = inner < inputs - at
            weight = tl.load(weight_tile_ptr, mask=inside, other=0.0, eviction_policy="evict_first")
            x = tl.load(x_tile_ptr, mask=here[:, None] & inside, other=0.0)
        else:
            weight = tl.load(weight_tile_ptr, eviction_policy="evict_first")
            x = tl.load(x_tile_ptr, mask=here[:, None], other=0.0)
        acc = _add_dot(acc, weight, x, x_block_scale, weight_block_scale)
        weight_tile_ptr += BLOCK_K
        x_tile_ptr += BLOCK_K
    for ahead in tl.static_range(AHEAD):
        # Past the end there are zeros, whatever their scales.
        at = tl.minimum(begin + ahead * BLOCK_K, inputs - 1)
        if X_BLOCKS:
            x_block_ptr = x_scale_row_ptr + at // BLOCK_K * stride_x_scale_block
            x_block_scale = tl.load(x_block_ptr, mask=here, other=0.0)
        else:
            x_block_scale = None
        if WEIGHT_BLOCKS:
            weight_block_scale = tl.load(weight_scale_row_ptr + at // BLOCK_K * stride_weight_scale_block)
        else:
            weight_block_scale = None
        acc = _add_dot(acc, first_weights[ahead], first_inputs[ahead], x_block_scale, weight_block_scale)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)

    acc = acc.to(tl.float32)
    if splits > 1 and not SPLIT_K_PARTIALS:
        places = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        tile_ptr = partial_ptr + tile.to(tl.int64) * BLOCK_N * BLOCK_M + places
        stride_split = (tl.num_programs(0) * tl.num_programs(1)).to(tl.int64) * BLOCK_N * BLOCK_M
        tl.store(tile_ptr + split * stride_split, acc)
        if not is_last(arrived_ptr + tile, splits):
            return
        acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        for index in range(splits):
            acc += tl.load(tile_ptr + index * stride_split, cache_modifier=".cg")
    if not X_BLOCKS:
        acc *= x_scale[None, :]
    if not WEIGHT_BLOCKS:
        acc *= weight_scale[:, None]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + weight_rows).to(tl.float32)[:, None]
    if SPLIT_K_PARTIALS:
        out_ptr += split.to(tl.int64) * stride_out_partial
    out = acc.to(out_ptr.dtype.element_ty)
    if ACTIVATION is not None:
        gate, up = out.to(tl.float32).reshape(BLOCK_N // 16, 2, 8, BLOCK_M).permute(0, 2, 3, 1).split()
        out = gated_activation(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty).reshape(BLOCK_N // 2, BLOCK_M)
        rows = tl.program_id(1) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        outputs = outputs // 2
    out_tile_ptr = out_ptr + members.to(tl.int64)[None, :] * stride_out_token + rows[:, None]
    stored = here[None, :] & (rows < outputs)[:, None]
    tl.store(out_tile_ptr, out, mask=stored)
    if largest_ptr is not None:
        # Absolute values are compared by their bits, as integers, which have the same order, and NaN above all.
        bits = tl.max(out.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
        places = largest_ptr + members * tl.num_programs(1) + tl.program_id(1)
        tl.store(places, bits.to(tl.float32, bitcast=True), mask=here)


_launch = Launcher(
    w8a8_gemm_kernel,
    writes=("out", "largest", "partial", "arrived"),
    reads_early=("weight", "weight_scale"),
    dependents="after the wait",
)


def w8a8_gemm(
    x8: Tensor,
    x_scale: Tensor,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Mapping[str, int],
    activation: str | None = None,
    largest: Tensor | None = None,
) -> None:
    """Launches the kernel. `out` may have three dimensions, for split-K partials.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    tokens, inputs = x8.shape
    outputs = len(weight8)
    by_block = x_scale.dim() > 1 or weight_scale.dim() > 1
    block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["splits"]
    block_k = BLOCK if by_block else config["BLOCK_K"]
    grid = (triton.cdiv(tokens, block_m), triton.cdiv(outputs, block_n), splits)
    tiles = grid[0] * grid[1]
    keeps_partials = out.dim() == 3
    reduces = splits > 1 and not keeps_partials
    partial = x_scale.new_empty(splits * tiles * block_n * block_m if reduces else 0, dtype=torch.float32)
    _launch(
        grid,
        (x8, x_scale, weight8, weight_scale, bias, out, largest, partial, arrivals(x8.device, tiles if reduces else 0)),
        (
            inputs,
            outputs,
            x8.stride(0),
            x_scale.stride(0),
            x_scale.stride(-1),
            weight8.stride(0),
            weight_scale.stride(0),
            weight_scale.stride(-1),
            out.stride(0) if keeps_partials else 0,
            out.stride(-2),
        ),
        (tokens, splits),
        ACTIVATION=activation,
        SPLIT_K_PARTIALS=keeps_partials,
        X_BLOCKS=x_scale.dim() > 1,
        WEIGHT_BLOCKS=weight_scale.dim() > 1,
        SCALE_ROWS=1 if len(weight_scale) == outputs else BLOCK,
        MASK_K=inputs % block_k != 0,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        AHEAD=config["AHEAD"],
        num_warps=config["num_warps"],
        STAGES=config["num_stages"] if by_block and block_m <= _MOST_AHEAD else None,
        num_stages=config["num_stages"],
    )

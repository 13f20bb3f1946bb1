"""W8A8 GEMM in float8 for 2 to 64 tokens on Hopper (compute capability 9.0; Gluon), with scales by token and row.

The formula, layouts and rounding are those of `w8a8_linear`, with an activation those of `w8a8_gated`, and with one
`out` for each split those of `w8a8_split_k`, which call it. Rows begin at multiples of 16 bytes, and inputs are a
multiple of 256.

A step has 256 inputs. The copies of a later step start first, then two matrix instructions of 128 inputs are in flight,
and the sums of one leave the short accumulator while the other runs. Tiles of the weight are prefetched before
`griddepcontrol.wait`. Tokens of a tile beyond the batch are zeros: copies of the last token would be the same few lines
for all thread blocks. With an activation two thread blocks share an SM, so that one multiplies while the other waits.

It is in Gluon because Triton waits for the matrix instruction of 128 inputs before it starts the next copies. Triton's
interpreter cannot run it; the tests compare it on a device. A data file says where `w8a8_gemm.py` is faster.
Bytes floor: outputs * inputs. On an H200 a layer of an 8B with 64 tokens takes 72.8 us.
Lab: docs/lab/2026-11-w8a8-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..norm.activations import gated_activation
from ..runtime.launch import Launcher, arrivals
from ..runtime.triton import cuda, gl, gluon, hopper, triton

STEP = 256
"""Inputs of a step."""
_CHUNK = gl.constexpr(128)  # inputs that the tensor core adds up in its short accumulator
_STEP = gl.constexpr(STEP)


@gluon.jit
def _rows(tile, local, outputs, GATED: gl.constexpr, BLOCK_N: gl.constexpr):
    """Weight rows of a tile. Rows past the end are the last one.

    With an activation eight rows of gate alternate with eight of up: a matrix instruction leaves both in the same
    threads.
    """
    if GATED:
        pairs = tile * (BLOCK_N // 2) + local // 16 * 8 + local % 8
        return gl.minimum(pairs, outputs // 2 - 1) + local // 8 % 2 * (outputs // 2)
    else:
        return gl.minimum(tile * BLOCK_N + local, outputs - 1)


@gluon.jit
def _copy(pointers, tiles, stage, step, end, here=None):
    """Starts the copy of a step's inputs, where there is one, into a stage; zeros for rows that are not `here`."""
    if step < end:
        hopper.async_copy.async_copy_global_to_shared(tiles.index(stage), pointers + step * _STEP, mask=here)


@gluon.jit(do_not_specialize=["tokens", "splits"])
def fp8_small_hopper_kernel(
    x_ptr,  # [tokens, inputs]
    x_scale_ptr,  # [tokens] float32
    weight_ptr,  # [outputs, inputs]
    weight_scale_ptr,  # [outputs] float32
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs], with an activation [tokens, outputs / 2], or [splits, tokens, outputs] float32
    largest_ptr,  # [tokens, tiles] float32 or None: with an activation, the largest absolute value of each tile
    partial_ptr,  # [splits, tiles, BLOCK_N, BLOCK_M] float32, used where splits > 1
    arrived_ptr,  # [tiles] int32, zero before and after
    inputs,  # a multiple of 256
    outputs,
    stride_x_token,
    stride_x_scale_token,
    stride_weight_output,
    stride_weight_scale_row,
    stride_out_partial,
    stride_out_token,
    tokens,
    splits,
    ACTIVATION: gl.constexpr,  # key of GATED or None
    SPLIT_K_PARTIALS: gl.constexpr,  # whether `out` gets the partial of each split
    BLOCK_M: gl.constexpr,  # at least tokens
    BLOCK_N: gl.constexpr,
    AHEAD: gl.constexpr,  # steps whose weight tiles are prefetched before the wait, fewer than STAGES
    STAGES: gl.constexpr,  # steps in shared memory
    PDL: gl.constexpr,
):
    """One thread block computes BLOCK_N outputs of all tokens, over one of `splits` splits of the inputs."""
    TYPE: gl.constexpr = out_ptr.dtype.element_ty
    CODES: gl.constexpr = x_ptr.dtype.element_ty
    GATED: gl.constexpr = ACTIVATION is not None
    WARPS: gl.constexpr = gl.num_warps()
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 32])
    copied: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [WARPS, 1], [1, 0])
    tile = gl.program_id(0)
    split = gl.program_id(1)
    steps = inputs // _STEP
    steps_of_split = (steps + splits - 1) // splits
    begin = split * steps_of_split
    end = gl.minimum(begin + steps_of_split, steps)
    rows = _rows(tile, gl.arange(0, BLOCK_N, gl.SliceLayout(1, copied)), outputs, GATED, BLOCK_N)
    inner = gl.arange(0, _STEP, gl.SliceLayout(0, copied))[None, :]
    weight_ptrs = weight_ptr + (rows.to(gl.int64) * stride_weight_output)[:, None] + inner
    # Tokens past the end are zeros, and are not stored.
    members = gl.arange(0, BLOCK_M, gl.SliceLayout(1, copied))
    here = (members < tokens)[:, None]
    x_ptrs = x_ptr + (members.to(gl.int64) * stride_x_token)[:, None] + inner
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    weight_tiles = gl.allocate_shared_memory(CODES, [STAGES, BLOCK_N, _STEP], shared)
    x_tiles = gl.allocate_shared_memory(CODES, [STAGES, BLOCK_M, _STEP], shared)

    # Copies arrive in the order of their groups, so the first step waits for all prefetched tiles.
    for ahead in gl.static_range(AHEAD):
        _copy(weight_ptrs, weight_tiles, ahead, begin + ahead, end)
        hopper.async_copy.commit_group()
    if PDL:
        cuda.gdc_wait()
    for ahead in gl.static_range(STAGES - 1):
        if ahead >= AHEAD:
            _copy(weight_ptrs, weight_tiles, ahead, begin + ahead, end)
        _copy(x_ptrs, x_tiles, ahead, begin + ahead, end, here)
        hopper.async_copy.commit_group()
    columns = gl.arange(0, BLOCK_M, gl.SliceLayout(0, sums))
    x_scale = gl.load(x_scale_ptr + gl.minimum(columns, tokens - 1) * stride_x_scale_token)
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, sums)
    zeros = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, sums)
    stage = 0
    for step in range(begin, end):
        hopper.async_copy.wait_group(STAGES - 2)
        # The copies of all threads have arrived, and the previous step is finished in all warps.
        gl.thread_barrier()
        free = gl.where(stage == 0, STAGES - 1, stage - 1)
        _copy(weight_ptrs, weight_tiles, free, step + STAGES - 1, end)
        _copy(x_ptrs, x_tiles, free, step + STAGES - 1, end, here)
        hopper.async_copy.commit_group()
        hopper.fence_async_shared()
        weight_tile = weight_tiles.index(stage)
        x_tile = x_tiles.index(stage)
        first = hopper.warpgroup_mma(
            weight_tile.slice(0, _CHUNK, 1), x_tile.slice(0, _CHUNK, 1).permute((1, 0)), zeros, use_acc=False,
            is_async=True,
        )  # fmt: skip
        second = hopper.warpgroup_mma(
            weight_tile.slice(_CHUNK, _CHUNK, 1), x_tile.slice(_CHUNK, _CHUNK, 1).permute((1, 0)), zeros, use_acc=False,
            is_async=True,
        )  # fmt: skip
        acc += hopper.warpgroup_mma_wait(1, deps=[first])
        acc += hopper.warpgroup_mma_wait(0, deps=[second])
        stage = gl.where(stage + 1 == STAGES, 0, stage + 1)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    if PDL:
        cuda.gdc_launch_dependents()
    hopper.async_copy.wait_group(0)
    gl.thread_barrier()

    if splits > 1 and not SPLIT_K_PARTIALS:
        order = gl.arange(0, BLOCK_N, gl.SliceLayout(1, sums))[:, None] * BLOCK_M
        order += gl.arange(0, BLOCK_M, gl.SliceLayout(0, sums))[None, :]
        tile_ptrs = partial_ptr + tile.to(gl.int64) * (BLOCK_N * BLOCK_M) + order
        stride_split = gl.num_programs(0).to(gl.int64) * (BLOCK_N * BLOCK_M)
        gl.store(tile_ptrs + split * stride_split, acc)
        gl.thread_barrier()
        if gl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") != splits - 1:
            return
        gl.store(arrived_ptr + tile, 0)
        acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, sums)
        for index in range(splits):
            acc += gl.load(tile_ptrs + index * stride_split, cache_modifier=".cg")
    scaled_rows = _rows(tile, gl.arange(0, BLOCK_N, gl.SliceLayout(1, sums)), outputs, GATED, BLOCK_N)
    acc = acc * x_scale[None, :] * gl.load(weight_scale_ptr + scaled_rows * stride_weight_scale_row)[:, None]
    if bias_ptr is not None:
        acc += gl.load(bias_ptr + scaled_rows).to(gl.float32)[:, None]
    if SPLIT_K_PARTIALS:
        out_ptr += split.to(gl.int64) * stride_out_partial
    out = acc.to(TYPE)
    HEIGHT: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    if GATED:
        gate, up = out.to(gl.float32).reshape((BLOCK_N // 16, 2, 8, BLOCK_M)).permute((0, 2, 3, 1)).split()
        out = gated_activation(gate, up, ACTIVATION).to(TYPE).reshape((HEIGHT, BLOCK_M))
        outputs = outputs // 2
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [HEIGHT // 8, 256 // HEIGHT], [1, WARPS], [0, 1])
    out = gl.convert_layout(out, stored)
    out_tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, stored))
    out_rows = tile * HEIGHT + gl.arange(0, HEIGHT, gl.SliceLayout(1, stored))
    out_ptrs = out_ptr + (out_tokens.to(gl.int64) * stride_out_token)[None, :] + out_rows[:, None]
    gl.store(out_ptrs, out, mask=(out_tokens < tokens)[None, :] & (out_rows < outputs)[:, None])
    if largest_ptr is not None:
        # Compared as integers, by their bits, which have the same order, and NaN above all. Rows past the end count
        # once more.
        bits = gl.max(out.to(gl.float32).to(gl.int32, bitcast=True) & 0x7FFFFFFF, axis=0)
        places = largest_ptr + out_tokens * gl.num_programs(0) + tile
        gl.store(places, bits.to(gl.float32, bitcast=True), mask=out_tokens < tokens)


_launch = Launcher(
    fp8_small_hopper_kernel,
    writes=("out", "largest", "partial", "arrived"),
    reads_early=("weight",),
    dependents="after the wait",
)


def fp8_small_hopper(
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
    """Launches the kernel: shapes as of `w8a8_linear`, up to 64 tokens, and settings as of its data file.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    tokens, inputs = x8.shape
    outputs = len(weight8)
    block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["splits"]
    tiles = triton.cdiv(outputs, block_n)
    keeps_partials = out.dim() == 3
    reduces = splits > 1 and not keeps_partials
    partial = x_scale.new_empty(splits * tiles * block_n * block_m if reduces else 0, dtype=torch.float32)
    _launch(
        (tiles, splits),
        (x8, x_scale, weight8, weight_scale, bias, out, largest, partial, arrivals(x8.device, tiles if reduces else 0)),
        (
            inputs,
            outputs,
            x8.stride(0),
            x_scale.stride(0),
            weight8.stride(0),
            weight_scale.stride(0),
            out.stride(0) if keeps_partials else 0,
            out.stride(-2),
        ),
        (tokens, splits),
        SPLIT_K_PARTIALS=keeps_partials,
        ACTIVATION=activation,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        AHEAD=config["AHEAD"],
        STAGES=config["num_stages"],
        num_warps=config["num_warps"],
    )

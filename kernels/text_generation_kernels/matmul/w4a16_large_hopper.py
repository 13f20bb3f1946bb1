"""W4A16 GEMM for more than 128 tokens on Hopper (compute capability 9.0; Gluon).

The formula and layouts are those of `weight_only_linear`, which calls it where a data file says so. A thread block
computes 128 outputs of up to 256 tokens, so that codes are dequantised few times. Weights go from registers into the
tensor cores: while those multiply 32 inputs, the next codes are dequantised. Tokens come through a ring of tiles in
shared memory. As in `weight_only_gemm.py` the inputs may be split.

Tokens of a tile beyond the batch are zeros: copies of the last token would be read by all thread blocks. A stage is one
tile, as Triton puts a barrier of all threads before copies into a second one.

It is in Gluon because Triton waits for each matrix instruction whose left operand it has made in registers. Triton's
interpreter cannot run it; the tests compare it on a device.
Bytes floor: outputs * inputs / 2, and the scales. On an H200 28672 x 4096 with 257 tokens takes 176 us.
Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..runtime.launch import Launcher, arrivals
from ..runtime.triton import cuda, gl, gluon, hopper, triton
from .group_quantisation import PackedMatrix


def _pair(plane: int, magic: str) -> str:
    """Two words to the two neighbours of a plane, in the last bits of `magic`."""
    word, shift = f"${1 + plane // 4}", 4 * (plane % 4)
    last = f"lop3.b32 $0, t, 0x000f000f, {magic}, 0xea;"
    return f"{{ .reg .b32 t; shr.u32 t, {word}, {shift}; {last} }}"


_PAIRS_BF16 = gl.constexpr(tuple(_pair(plane, "0x43004300") for plane in range(8)))
_PAIRS_FP16 = gl.constexpr(tuple(_pair(plane, "0x64006400") for plane in range(8)))


@gluon.jit
def plane(words, PLANE: gl.constexpr, DTYPE: gl.constexpr):
    """Plane PLANE of a block: 128 + code in bfloat16, or 1024 + code in float16."""
    if gl.float16 == DTYPE:
        PAIR: gl.constexpr = _PAIRS_FP16[PLANE]
        return gl.inline_asm_elementwise(PAIR, "=r,r,r", [words], dtype=gl.float16, is_pure=True, pack=2)
    else:
        PAIR: gl.constexpr = _PAIRS_BF16[PLANE]
        return gl.inline_asm_elementwise(PAIR, "=r,r,r", [words], dtype=gl.bfloat16, is_pure=True, pack=2)


@gluon.jit
def _weights(words, values, PLANE: gl.constexpr, GROUPS: gl.constexpr, ZEROS: gl.constexpr, DTYPE: gl.constexpr):
    """Plane PLANE of a block as weights. `values` are of `_of_groups`."""
    GROUP: gl.constexpr = PLANE * GROUPS // 8
    weights = plane(words, PLANE, DTYPE)
    if ZEROS:
        weights -= values[GROUPS + GROUP][:, None]
    elif gl.float16 == DTYPE:
        weights -= 1032.0
    else:
        weights -= 136.0
    return weights * values[GROUP][:, None]


@gluon.jit
def _of_groups(scales_ptr, zeros_ptr, places, GROUPS: gl.constexpr, DTYPE: gl.constexpr):
    """The scales of a block's groups, and then, where there are zeros, what is subtracted from a plane's values."""
    ABOVE: gl.constexpr = 1024.0 if gl.float16 == DTYPE else 128.0
    values = ()
    for group in gl.static_range(GROUPS):
        values += (gl.load(scales_ptr + places + group).to(DTYPE),)
    if zeros_ptr is not None:
        for group in gl.static_range(GROUPS):
            values += ((gl.load(zeros_ptr + places + group).to(gl.float32) + ABOVE).to(DTYPE),)
    return values


@gluon.jit
def _copy(x_ptr, offsets, here, tiles, stage):
    """Starts the copy of 64 inputs into the tile of a stage; zeros for tokens that are not `here`."""
    hopper.async_copy.async_copy_global_to_shared(tiles.index(stage), x_ptr + offsets, mask=here)


@gluon.jit(do_not_specialize=["tokens", "splits"])
def w4a16_large_hopper_kernel(
    x_ptr,  # [tokens, inputs]
    packed_ptr,  # int32 [outputs, blocks * 32]
    scales_ptr,  # [blocks, outputs, GROUPS]
    zeros_ptr,  # as scales_ptr, or None
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs]
    partial_ptr,  # [splits, tiles, BLOCK_N, BLOCK_M] float32, used where splits > 1
    arrived_ptr,  # [tiles] int32, zero before and after
    inputs,
    outputs,
    stride_x_token,
    stride_packed_output,
    stride_out_token,
    tokens,
    splits,
    GROUPS: gl.constexpr,  # in 256 inputs
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,  # tiles of 64 inputs in shared memory
    PDL: gl.constexpr,
):
    """One thread block computes BLOCK_N outputs of BLOCK_M tokens, over one of `splits` splits of the inputs."""
    DTYPE: gl.constexpr = x_ptr.dtype.element_ty
    ZEROS: gl.constexpr = zeros_ptr is not None
    WARPS: gl.constexpr = gl.num_warps()
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0])
    blocks = inputs // 256
    blocks_of_split = (blocks + splits - 1) // splits
    begin = gl.program_id(2) * blocks_of_split
    end = gl.minimum(begin + blocks_of_split, blocks)
    # Rows past the end read the last one, and are not stored.
    rows = gl.minimum(gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, operand)), outputs - 1)
    row_ptrs = packed_ptr + (rows.to(gl.int64) * stride_packed_output)[:, None]
    word_ptrs = row_ptrs + gl.arange(0, 32, gl.SliceLayout(0, operand))[None, :]
    places = rows * GROUPS
    first_token = gl.program_id(0) * BLOCK_M
    members = gl.arange(0, BLOCK_M, gl.SliceLayout(1, copied))
    here = (first_token + members < tokens)[:, None]
    x_ptr += first_token.to(gl.int64) * stride_x_token
    offsets = (members * stride_x_token)[:, None] + gl.arange(0, 64, gl.SliceLayout(0, copied))[None, :]
    tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_M, 64], gl.NVMMASharedLayout(64, 16, 2))
    # A split may be empty.
    following = gl.minimum(begin, blocks - 1)
    words = gl.load(word_ptrs + following * 32)
    values = _of_groups(scales_ptr, zeros_ptr, places + following * outputs * GROUPS, GROUPS, DTYPE)

    if PDL:
        cuda.gdc_wait()
    for ahead in gl.static_range(STAGES - 2):
        if begin + ahead // 4 < end:
            _copy(x_ptr + begin * 256 + ahead * 64, offsets, here, tiles, ahead)
        hopper.async_copy.commit_group()
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, sums)
    stage = 0
    held = _weights(words, values, 0, GROUPS, ZEROS, DTYPE)
    for block in range(begin, end):
        following = gl.minimum(block + 1, blocks - 1)
        next_words = gl.load(word_ptrs + following * 32)
        next_values = _of_groups(scales_ptr, zeros_ptr, places + following * outputs * GROUPS, GROUPS, DTYPE)
        for quarter in gl.static_range(4):
            first = _weights(words, values, 2 * quarter, GROUPS, ZEROS, DTYPE)
            # The copies of all threads have arrived, and all matrix instructions but the last are finished in all
            # warps: their tiles are free.
            hopper.async_copy.wait_group(STAGES - 3)
            gl.thread_barrier()
            hopper.fence_async_shared()
            tile = tiles.index(stage)
            token = hopper.warpgroup_mma(first, tile.slice(0, 32, 1).permute((1, 0)), acc, is_async=True)
            second = _weights(words, values, 2 * quarter + 1, GROUPS, ZEROS, DTYPE)
            token = hopper.warpgroup_mma(second, tile.slice(32, 32, 1).permute((1, 0)), token, is_async=True)
            if block + (quarter + STAGES - 2) // 4 < end:
                free = gl.where(stage < 2, stage + STAGES - 2, stage - 2)
                _copy(x_ptr + block * 256 + (quarter + STAGES - 2) * 64, offsets, here, tiles, free)
            hopper.async_copy.commit_group()
            stage = gl.where(stage + 1 == STAGES, 0, stage + 1)
            # Registers of the matrix instruction that still runs stay as they are.
            acc, first, held = hopper.warpgroup_mma_wait(1, deps=[token, first, held])
            held = second
        words = next_words
        values = next_values
    acc, held = hopper.warpgroup_mma_wait(0, deps=[acc, held])
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    if PDL:
        cuda.gdc_launch_dependents()
    hopper.async_copy.wait_group(0)
    gl.thread_barrier()

    if splits > 1:
        tile = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
        order = gl.arange(0, BLOCK_N, gl.SliceLayout(1, sums))[:, None] * BLOCK_M
        order += gl.arange(0, BLOCK_M, gl.SliceLayout(0, sums))[None, :]
        tile_ptrs = partial_ptr + tile.to(gl.int64) * (BLOCK_N * BLOCK_M) + order
        stride_split = (gl.num_programs(0) * gl.num_programs(1)).to(gl.int64) * (BLOCK_N * BLOCK_M)
        gl.store(tile_ptrs + gl.program_id(2) * stride_split, acc)
        gl.thread_barrier()
        if gl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") != splits - 1:
            return
        gl.store(arrived_ptr + tile, 0)
        acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, sums)
        for split in range(splits):
            acc += gl.load(tile_ptrs + split * stride_split, cache_modifier=".cg")
    if bias_ptr is not None:
        bias_rows = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, sums))
        acc += gl.load(bias_ptr + gl.minimum(bias_rows, outputs - 1)).to(gl.float32)[:, None]
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [16, 2], [1, WARPS], [0, 1])
    result = gl.convert_layout(acc.to(DTYPE), stored)
    out_rows = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    out_tokens = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(0, stored))
    out_ptrs = out_ptr + (out_tokens.to(gl.int64) * stride_out_token)[None, :] + out_rows[:, None]
    gl.store(out_ptrs, result, mask=(out_tokens < tokens)[None, :] & (out_rows < outputs)[:, None])


_launch = Launcher(
    w4a16_large_hopper_kernel,
    writes=("out", "partial", "arrived"),
    reads_early=("packed", "scales", "zeros"),
    dependents="after the wait",
)


def w4a16_large_hopper(
    x: Tensor,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    config: Mapping[str, int],
) -> None:
    """Launches the kernel: shapes as of `weight_only_linear`.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    tokens, inputs = x.shape
    packed, outputs = weight.packed, weight.outputs
    block_m, block_n, splits = config["BLOCK_M"], config["BLOCK_N"], config["splits"]
    grid = (triton.cdiv(tokens, block_m), triton.cdiv(outputs, block_n), splits)
    tiles = grid[0] * grid[1]
    arrived = arrivals(x.device, tiles if splits > 1 else 0)
    partial = x.new_empty(splits * tiles * block_n * block_m if splits > 1 else 0, dtype=torch.float32)
    _launch(
        grid,
        (x, packed, weight.scales, weight.zeros, bias, out, partial, arrived),
        (inputs, outputs, x.stride(0), packed.stride(0), out.stride(0)),
        (tokens, splits),
        GROUPS=weight.groups,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        STAGES=config["num_stages"],
        num_warps=config["num_warps"],
    )

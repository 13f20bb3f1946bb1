"""W4A16 GEMM for 9 to 32 tokens and many outputs on Hopper (compute capability 9.0; Gluon), with groups of 128.

The formula and layouts are those of `weight_only_linear`, which calls it where a data file says so. Codes go through a
ring of tiles in shared memory by asynchronous copies: those of all tiles but one are prefetched before
`griddepcontrol.wait`, without registers, and dependents launch as soon as this kernel has waited.

All tokens of a block lie in one tile, because copies into several have a barrier of all threads before each. Up to 16
tokens the next block's copies start before the matrix instructions of a block, with more after them.

It is in Gluon because Triton waits for each matrix instruction whose left operand it has made in registers. Triton's
interpreter cannot run it; the tests compare it on a device.
Bytes floor: outputs * inputs / 2, and the scales. On an H200 28672 x 4096 with 16 tokens takes 23.2 us; its matrix
instructions alone take 17.3. Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from collections.abc import Mapping

from torch import Tensor

from ..runtime.launch import Launcher
from ..runtime.triton import cuda, gl, gluon, hopper, triton
from .group_quantisation import PackedMatrix
from .w4a16_large_hopper import plane

_GROUPS = gl.constexpr(2)  # of 128 inputs in a block


@gluon.jit
def _of_groups(scales_ptr, zeros_ptr, rows, operand_rows, block, outputs):
    """The scales of a block's two groups, and then, where there are zeros, those: one for each of `rows`."""
    at = (block * outputs + rows) * _GROUPS
    values = (gl.load(scales_ptr + at), gl.load(scales_ptr + at + 1))
    if zeros_ptr is not None:
        at = (block * outputs + operand_rows) * _GROUPS
        values += (gl.load(zeros_ptr + at), gl.load(zeros_ptr + at + 1))
    return values


@gluon.jit
def _copy_words(word_ptrs, word_tiles, stage, block):
    hopper.async_copy.async_copy_global_to_shared(word_tiles.index(stage), word_ptrs + block * 32)


@gluon.jit
def _copy_tokens(x_ptrs, here, x_tiles, stage, block):
    """Starts the copy of a block's inputs. Tokens past the end are zeros: many reads of one token are slow."""
    hopper.async_copy.async_copy_global_to_shared(x_tiles.index(stage), x_ptrs + block * 256, mask=here)


@gluon.jit
def _copy(is_copied, word_ptrs, word_tiles, x_ptrs, here, x_tiles, stage, block):
    """Starts the copies of a block, where there is one more."""
    if is_copied:
        _copy_words(word_ptrs, word_tiles, stage, block)
        _copy_tokens(x_ptrs, here, x_tiles, stage, block)
    hopper.async_copy.commit_group()


@gluon.jit
def _weights(words, values, PLANE: gl.constexpr, ZEROS: gl.constexpr, DTYPE: gl.constexpr):
    """Plane PLANE of a block less its zeros. `values` are of `_of_groups`."""
    weights = plane(words, PLANE, DTYPE)
    if ZEROS:
        ABOVE: gl.constexpr = 1024.0 if gl.float16 == DTYPE else 128.0
        return weights - (values[2 + PLANE // 4].to(gl.float32) + ABOVE).to(DTYPE)[:, None]
    elif gl.float16 == DTYPE:
        return weights - 1032.0
    else:
        return weights - 136.0


@gluon.jit
def _add_block(acc, words, x_tile, values, ZEROS: gl.constexpr, DTYPE: gl.constexpr):
    """`acc` plus the matmul over 256 inputs. While one plane is multiplied, the next one is dequantised."""
    zeros = gl.zeros_like(acc)
    first = zeros
    sums = zeros
    made = ()
    for PLANE in gl.static_range(8):
        made += (_weights(words, values, PLANE, ZEROS, DTYPE),)
        # All matrix instructions but the last are finished. Registers of weights stay until theirs is.
        if PLANE == 5:
            first, _, _ = hopper.warpgroup_mma_wait(1, deps=[first, made[2], made[3]])
            acc += first * values[0].to(gl.float32)[:, None]
        elif PLANE >= 2 and PLANE != 4:
            sums, _, _ = hopper.warpgroup_mma_wait(1, deps=[sums, made[PLANE - 2], made[PLANE - 1]])
        x_slice = x_tile.slice(PLANE * 32, 32, 1).permute((1, 0))
        if PLANE % 4 == 0:
            if PLANE == 4:
                first = sums
            sums = hopper.warpgroup_mma(made[PLANE], x_slice, zeros, use_acc=False, is_async=True)
        else:
            sums = hopper.warpgroup_mma(made[PLANE], x_slice, sums, is_async=True)
    sums, _, _ = hopper.warpgroup_mma_wait(0, deps=[sums, made[6], made[7]])
    return acc + sums * values[1].to(gl.float32)[:, None]


@gluon.jit(do_not_specialize=["tokens"])
def w4a16_small_hopper_kernel(
    x_ptr,  # [tokens, inputs]
    packed_ptr,  # int32 [outputs, blocks * 32]
    scales_ptr,  # [blocks, outputs, 2]
    zeros_ptr,  # as scales_ptr, or None
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs]
    inputs,  # a multiple of 256
    outputs,
    stride_x_token,
    stride_packed_output,
    stride_out_token,
    tokens,
    BLOCK_M: gl.constexpr,  # at least tokens
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,  # blocks of 256 inputs in shared memory
    PDL: gl.constexpr,
):
    """One thread block computes BLOCK_N outputs of all tokens."""
    DTYPE: gl.constexpr = x_ptr.dtype.element_ty
    WARPS: gl.constexpr = gl.num_warps()
    # Whether a block's copies start after the matrix instructions of another, or before them.
    COPY_LATE: gl.constexpr = BLOCK_M > 16
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    words_copied: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [WARPS, 1], [1, 0])
    x_warps: gl.constexpr = BLOCK_M // 8 if BLOCK_M < 8 * WARPS else WARPS
    x_copied: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [x_warps, WARPS // x_warps], [1, 0])
    blocks = inputs // 256
    first_row = gl.program_id(0) * BLOCK_N
    # Rows past the end read the last one, and are not stored.
    rows = gl.minimum(first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, words_copied)), outputs - 1)
    word_ptrs = packed_ptr + (rows.to(gl.int64) * stride_packed_output)[:, None]
    word_ptrs += gl.arange(0, 32, gl.SliceLayout(0, words_copied))[None, :]
    members = gl.arange(0, BLOCK_M, gl.SliceLayout(1, x_copied))
    here = (members < tokens)[:, None]
    x_ptrs = x_ptr + (members.to(gl.int64) * stride_x_token)[:, None]
    x_ptrs += gl.arange(0, 256, gl.SliceLayout(0, x_copied))[None, :]
    word_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, BLOCK_N, 32], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
    x_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_M, 256], gl.NVMMASharedLayout(64, 16, 2))
    sum_rows = gl.minimum(first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, sums)), outputs - 1)
    operand_rows = gl.minimum(first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, operand)), outputs - 1)
    # Thread blocks begin at different blocks, or all would read the same inputs at the same time from the L2 cache.
    block = gl.program_id(0) % blocks
    values = _of_groups(scales_ptr, zeros_ptr, sum_rows, operand_rows, block, outputs)
    later = block
    for ahead in gl.static_range(STAGES - 1):
        _copy_words(word_ptrs, word_tiles, ahead, later)
        later = gl.where(later + 1 == blocks, 0, later + 1)

    if PDL:
        cuda.gdc_wait()
        # All kernels before this one are finished, on which the next kernel relies.
        cuda.gdc_launch_dependents()
    later = block
    for ahead in gl.static_range(STAGES - 1):
        _copy_tokens(x_ptrs, here, x_tiles, ahead, later)
        hopper.async_copy.commit_group()
        later = gl.where(later + 1 == blocks, 0, later + 1)
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, sums)
    stage = 0
    for number in range(0, blocks):
        hopper.async_copy.wait_group(STAGES - 2)
        # The copies of all threads have arrived, and the previous block is finished in all warps.
        gl.thread_barrier()
        hopper.fence_async_shared()
        words = word_tiles.index(stage).load(operand)
        is_copied = number + STAGES - 1 < blocks
        free = gl.where(stage == 0, STAGES - 1, stage - 1)
        if not COPY_LATE:
            _copy(is_copied, word_ptrs, word_tiles, x_ptrs, here, x_tiles, free, later)
        block = gl.where(block + 1 == blocks, 0, block + 1)
        following = _of_groups(scales_ptr, zeros_ptr, sum_rows, operand_rows, block, outputs)
        acc = _add_block(acc, words, x_tiles.index(stage), values, zeros_ptr is not None, DTYPE)
        if COPY_LATE:
            _copy(is_copied, word_ptrs, word_tiles, x_ptrs, here, x_tiles, free, later)
        later = gl.where(later + 1 == blocks, 0, later + 1)
        values = following
        stage = gl.where(stage + 1 == STAGES, 0, stage + 1)
    hopper.async_copy.wait_group(0)
    gl.thread_barrier()

    if bias_ptr is not None:
        acc += gl.load(bias_ptr + sum_rows).to(gl.float32)[:, None]
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [BLOCK_N // 8, 256 // BLOCK_N], [1, WARPS], [0, 1])
    result = gl.convert_layout(acc.to(DTYPE), stored)
    out_rows = first_row + gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    out_tokens = gl.arange(0, BLOCK_M, gl.SliceLayout(0, stored))
    out_ptrs = out_ptr + (out_tokens.to(gl.int64) * stride_out_token)[None, :] + out_rows[:, None]
    gl.store(out_ptrs, result, mask=(out_tokens < tokens)[None, :] & (out_rows < outputs)[:, None])


_launch = Launcher(
    w4a16_small_hopper_kernel, writes=("out",), reads_early=("packed", "scales", "zeros"), dependents="after the wait"
)


def w4a16_small_hopper(
    x: Tensor,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    config: Mapping[str, int],
) -> None:
    """Launches the kernel: shapes as of `weight_only_linear`, settings as of its data file."""
    tokens, inputs = x.shape
    packed, outputs = weight.packed, weight.outputs
    _launch(
        (triton.cdiv(outputs, config["BLOCK_N"]),),
        (x, packed, weight.scales, weight.zeros, bias, out),
        (inputs, outputs, x.stride(0), packed.stride(0), out.stride(0)),
        (tokens,),
        max_blocks_per_sm=config.get("PROGRAMS", 0),
        BLOCK_M=config["BLOCK_M"],
        BLOCK_N=config["BLOCK_N"],
        STAGES=config["num_stages"],
        num_warps=config["num_warps"],
    )

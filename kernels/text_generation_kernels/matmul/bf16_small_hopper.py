"""16-bit GEMM for 33 to 64 tokens on Hopper (compute capability 9.0; Gluon).

The formula, layouts and rounding are those of `linear` and, with one `out` for each split, of `linear_split_k`,
which call it. `x` and `weight` begin at multiples of 16 bytes.

- The tensor memory accelerator (TMA) copies whole tiles; no thread computes addresses.
- Tiles of the weight are prefetched before `griddepcontrol.wait`; memory is busy while the previous kernel computes a
  norm. Dependents launch as soon as all thread blocks have waited, and attention then prefetches keys and values.
- Tiles of `x` have a ring of their own with more stages: all thread blocks read the same ones, and they come late.
- Tokens are the left operand. So a thread block may have any sum of two powers of two as weight rows, such as 72 of
  gate and of up, with which the 132 SMs of an H200 have two thread blocks each for a Qwen2.5-7B.

It is in Gluon because Triton issues the first loads of a loop together, after the wait. Triton's interpreter cannot run
it; the tests compare it on a device. `benchmark/kernels/tune_bf16_small.py` chooses the tiles.
Bytes floor: outputs * inputs * 2. A step of Llama-3.1-8B with 64 streams at 2,048 runs at 91 % of the roofline.
Lab: docs/lab/2026-11-small-gemms-on-hopper.md.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..norm.activations import gated_activation
from ..runtime.launch import Launcher
from ..runtime.rings import advance
from ..runtime.triton import TensorDescriptor, cuda, gl, gluon, hopper, triton

_BLOCK_M, _WARPS = 64, 4
"""Tokens of a tile, and the warps that a matrix instruction of a warp group takes."""
_TYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@gluon.constexpr_function
def _total(tile_rows):
    return sum(tile_rows)


@gluon.jit
def _copy(tiles, rows, column, rings, stage, full, here, BYTES: gl.constexpr):
    """Starts the copies of a step, where there is one: a tile for each ring, `BYTES` in all."""
    barrier = full.index(stage)
    hopper.mbarrier.expect(barrier, BYTES, pred=here)
    for index in gl.static_range(len(rings)):
        place = rings[index].index(stage)
        hopper.tma.async_copy_global_to_shared(tiles[index], [rows[index], column], barrier, place, pred=here)


@gluon.jit
def _ring(tiles, STAGES: gl.constexpr):
    """Shared memory for STAGES tiles."""
    return gl.allocate_shared_memory(tiles.dtype, [STAGES, tiles.block_shape[0], tiles.block_shape[1]], tiles.layout)


@gluon.jit
def _barriers(STAGES: gl.constexpr):
    """A barrier for each stage of a ring, which completes when its tiles have arrived."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        hopper.mbarrier.init(full.index(stage), count=1)
    return full


@gluon.jit
def _zeros(BLOCK_M: gl.constexpr, N: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    return hopper.warpgroup_mma_init(gl.zeros([BLOCK_M, N], gl.float32, layout))


@gluon.jit
def _multiply(x, rings, stage, sums):
    """Starts the matrix instructions of a step."""
    started = ()
    for index in gl.static_range(len(rings)):
        tile = rings[index].index(stage).permute((1, 0))
        started += (hopper.warpgroup_mma(x, tile, sums[index], is_async=True),)
    return started


@gluon.jit
def _wait(sums):
    """Waits until the matrix instructions of the previous step are finished."""
    if len(sums) == 1:
        return (hopper.warpgroup_mma_wait(0, deps=sums),)
    else:
        return hopper.warpgroup_mma_wait(0, deps=sums)


@gluon.jit
def _store(gate, up, bias_ptr, delta_ptr, out_ptr, stride_token, first, size, tokens, ACTIVATION: gl.constexpr):
    """Outputs of a tile from `first` on. Without an activation `up` is unused."""
    TYPE: gl.constexpr = out_ptr.dtype.element_ty
    layout: gl.constexpr = gate.type.layout
    members = gl.arange(0, gate.shape[0], gl.SliceLayout(1, layout))
    rows = first + gl.arange(0, gate.shape[1], gl.SliceLayout(0, layout))
    exists = rows < size
    if bias_ptr is not None:
        gate += gl.load(bias_ptr + rows, mask=exists, other=0.0).to(gl.float32)[None, :]
    if delta_ptr is not None:
        HALVES: gl.constexpr = 1 if ACTIVATION is None else 2
        delta_ptrs = delta_ptr + (members.to(gl.int64) * (HALVES * size))[:, None] + rows[None, :]
        gate += gl.load(delta_ptrs, mask=(members < tokens)[:, None] & exists[None, :], other=0.0)
    out = gate.to(TYPE)
    if ACTIVATION is not None:
        if delta_ptr is not None:
            up += gl.load(delta_ptrs + size, mask=(members < tokens)[:, None] & exists[None, :], other=0.0)
        if bias_ptr is not None:
            up += gl.load(bias_ptr + size + rows, mask=exists, other=0.0).to(gl.float32)[None, :]
        out = gated_activation(out.to(gl.float32), up.to(TYPE).to(gl.float32), ACTIVATION).to(TYPE)
    out_ptrs = out_ptr + (members.to(gl.int64) * stride_token)[:, None] + rows[None, :]
    gl.store(out_ptrs, out, mask=(members < tokens)[:, None] & exists[None, :])


@gluon.jit(do_not_specialize=["tokens", "splits"])
def bf16_small_hopper_kernel(
    x_tiles,  # of BLOCK_M x BLOCK_K of [tokens, inputs]
    weight_tiles,  # of TILE_ROWS[0] x BLOCK_K of [outputs, inputs]
    weight_rest_tiles,  # of TILE_ROWS[1] x BLOCK_K of it, if there are two
    out_ptr,  # [tokens, outputs], with an activation [tokens, outputs / 2], or [splits, tokens, outputs] float32
    bias_ptr,  # [outputs] or None
    delta_ptr,  # [tokens, outputs] float32, which is added, or None
    inputs,
    outputs,
    stride_out_partial,
    stride_out_token,
    tokens,
    splits,
    ACTIVATION: gl.constexpr,  # key of GATED or None
    BLOCK_M: gl.constexpr,
    TILE_ROWS: gl.constexpr,  # weight rows of each tile of a thread block; with an activation, of gate and of up
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,  # tiles of the matrix in shared memory
    X_STAGES: gl.constexpr,  # tiles of x
    PDL: gl.constexpr,
):
    """One thread block computes the outputs of as many weight rows as TILE_ROWS has, of all tokens, over one of
    `splits` splits of the inputs. Past the end of a matrix tiles hold zeros.
    """
    HALVES: gl.constexpr = 1 if ACTIVATION is None else 2
    ROWS: gl.constexpr = _total(TILE_ROWS)
    BYTES: gl.constexpr = ROWS * BLOCK_K * 2 * HALVES
    X_BYTES: gl.constexpr = BLOCK_M * BLOCK_K * 2
    split = gl.program_id(1)
    blocks = (inputs + BLOCK_K - 1) // BLOCK_K
    blocks_of_split = (blocks + splits - 1) // splits
    begin = split * blocks_of_split
    steps = gl.minimum(blocks_of_split, blocks - begin)
    size = outputs // HALVES
    tiles, rows, rings, sums = (), (), (), ()
    for half in gl.static_range(HALVES):
        row = half * size + gl.program_id(0) * ROWS
        for index in gl.static_range(len(TILE_ROWS)):
            descriptor = (weight_tiles, weight_rest_tiles)[index]
            tiles += (descriptor,)
            rows += (row,)
            rings += (_ring(descriptor, STAGES),)
            sums += (_zeros(BLOCK_M, TILE_ROWS[index]),)
            row += TILE_ROWS[index]
    x_ring = _ring(x_tiles, X_STAGES)
    full = _barriers(STAGES)
    x_full = _barriers(X_STAGES)
    hopper.fence_async_shared()
    gl.thread_barrier()

    for step in gl.static_range(STAGES):
        _copy(tiles, rows, (begin + step) * BLOCK_K, rings, step, full, step < steps, BYTES)
    # The kernel that makes `delta` launches dependents once all before it are finished, so that x is there.
    if PDL and delta_ptr is None:
        cuda.gdc_wait()
        # Not earlier: the next kernel relies on all kernels before this one being finished.
        cuda.gdc_launch_dependents()
    for step in gl.static_range(X_STAGES):
        _copy((x_tiles,), (0,), (begin + step) * BLOCK_K, (x_ring,), step, x_full, step < steps, X_BYTES)
    stage = 0
    phase = 0
    x_stage = 0
    x_phase = 0
    used = 0
    x_used = 0
    for step in range(steps):
        hopper.mbarrier.wait(full.index(stage), phase)
        hopper.mbarrier.wait(x_full.index(x_stage), x_phase)
        sums = _wait(sums)
        sums = _multiply(x_ring.index(x_stage), rings, stage, sums)
        # After this barrier all warps have finished the previous step, whose stages are free.
        gl.thread_barrier()
        later = step - 1 + STAGES
        here = (step > 0) & (later < steps)
        _copy(tiles, rows, (begin + later) * BLOCK_K, rings, used, full, here, BYTES)
        later = step - 1 + X_STAGES
        here = (step > 0) & (later < steps)
        _copy((x_tiles,), (0,), (begin + later) * BLOCK_K, (x_ring,), x_used, x_full, here, X_BYTES)
        used = stage
        x_used = x_stage
        stage, phase = advance(stage, phase, STAGES)
        x_stage, x_phase = advance(x_stage, x_phase, X_STAGES)
    sums = _wait(sums)
    if PDL and delta_ptr is not None:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()

    out_ptr += split.to(gl.int64) * stride_out_partial
    for index in gl.static_range(len(TILE_ROWS)):
        up = sums[len(sums) - len(TILE_ROWS) + index]
        _store(sums[index], up, bias_ptr, delta_ptr, out_ptr, stride_out_token, rows[index], size, tokens, ACTIVATION)


_launch = Launcher(
    bf16_small_hopper_kernel, writes=("out",), reads_early=("weight", "weight_rest"), dependents="after the wait"
)
_launch_after_delta = Launcher(
    bf16_small_hopper_kernel,
    writes=("out",),
    reads_early=("x", "weight", "weight_rest"),
    dependents="after the wait",
    name="bf16_small_hopper_after_delta",
)


def bf16_small_hopper(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    settings: Mapping[str, int],
    delta: Tensor | None = None,
) -> None:
    """Launches the kernel: arguments as of `linear`, or an `out` for each of `splits` splits of the inputs. `delta`
    float32 [tokens, outputs], contiguous, is added before the activation. It is waited for at the end: the previous
    kernel, as `lora_delta`, must launch dependents after it has waited, and not write `x`.
    """
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    config = dict(settings)
    splits = config.pop("splits")
    block_k, tile_rows = config["BLOCK_K"], tile_rows_of(config.pop("ROWS"))
    tiles = [_tiles(weight, rows, block_k) for rows in tile_rows]
    (_launch if delta is None else _launch_after_delta)(
        (triton.cdiv(out.shape[-1], sum(tile_rows)), splits),
        (out, bias, delta),
        (inputs, outputs, out.stride(0) if out.dim() == 3 else 0, out.stride(-2)),
        (tokens, splits),
        (_tiles(x, _BLOCK_M, block_k), tiles[0], tiles[-1]),
        ACTIVATION=activation,
        BLOCK_M=_BLOCK_M,
        TILE_ROWS=tile_rows,
        num_warps=_WARPS,
        **config,
    )


def tile_rows_of(rows: int) -> tuple[int, ...]:
    """The powers of two that make up `rows`, the largest first: one or two."""
    return tuple(1 << bit for bit in reversed(range(rows.bit_length())) if rows >> bit & 1)


def _tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, columns], _layout(rows, columns, matrix.dtype))


@cache
def _layout(rows: int, columns: int, dtype: torch.dtype) -> Any:
    """The layout of a tile in shared memory. It is cached: finding it takes the host 7 us, and a launch needs three."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], _TYPES[dtype])

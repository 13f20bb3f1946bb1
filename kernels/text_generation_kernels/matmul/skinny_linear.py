"""16-bit memory-bound GEMM for up to 64 tokens in Triton, with the gated activation as epilogue.

Formula, layouts and rounding are those of `linear` and, with one `out` for each split, of `linear_split_k`, which call
it. On Hopper cards `bf16_small_hopper.py` computes 33 to 64 tokens where splits are not reduced.

Bytes floor: outputs * inputs * element size. On an H200 28672 x 4096 with 16 tokens takes 56.4 us in bfloat16 (cuBLAS
57.1). Lab: docs/lab/2026-11-small-gemms-on-hopper.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Mapping

import torch
from torch import Tensor

from ..norm.activations import gated_activation
from ..runtime.launch import Launcher, arrivals, is_last, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from .ladder import padded_tokens


@triton.jit(do_not_specialize=["tokens", "splits"])
def skinny_linear_kernel(
    x_ptr,  # [tokens, inputs]
    weight_ptr,  # [outputs, inputs]
    bias_ptr,  # [outputs] or None
    delta_ptr,  # [tokens, outputs] float32, which is added, or None
    out_ptr,  # [tokens, outputs], or [splits, tokens, outputs] float32
    partial_ptr,  # [splits, tiles, BLOCK_N, BLOCK_M] float32, used where splits > 1
    arrived_ptr,  # [tiles] int32, zero before and after
    inputs,  # a multiple of BLOCK_K
    outputs,
    stride_x_token,
    stride_weight_output,
    stride_out_partial,
    stride_out_token,
    tokens,
    splits,
    ACTIVATION: tl.constexpr,  # key of GATED or None
    SPLIT_K_PARTIALS: tl.constexpr,  # whether `out` gets the partial of each split
    BLOCK_M: tl.constexpr,  # at least tokens
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs of all tokens, over one of `splits` splits of the inputs.

    The weight is the left operand, so that its rows fill the 64 that a matrix instruction takes and tokens are the
    short side. The last thread block of a tile reduces its partials in their order, unless SPLIT_K_PARTIALS leaves
    them to the next kernel. With an activation half of the rows of a tile are gate and half are up.
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    inputs_of_split = tl.cdiv(tl.cdiv(inputs, BLOCK_K), splits) * BLOCK_K
    begin = split * inputs_of_split
    end = tl.minimum(begin + inputs_of_split, inputs)
    local_rows = tl.arange(0, BLOCK_N)
    # Rows past the end read the last one, and are not stored.
    if ACTIVATION is None:
        weight_rows = tl.minimum(tile * BLOCK_N + local_rows, outputs - 1)
    else:
        # Eight rows of gate, eight of up: a matrix instruction leaves both in the same threads.
        pairs = tile * (BLOCK_N // 2) + local_rows // 16 * 8 + local_rows % 8
        weight_rows = tl.minimum(pairs, outputs // 2 - 1) + local_rows // 8 % 2 * (outputs // 2)
    members = tl.arange(0, BLOCK_M)
    here = (members < tokens)[:, None]
    columns = begin + tl.arange(0, BLOCK_K)[None, :]
    weight_tile_ptr = weight_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + columns
    x_tile_ptr = x_ptr + members.to(tl.int64)[:, None] * stride_x_token + columns

    # The kernel that makes `delta` launches dependents once all before it are finished, so that x is there.
    if delta_ptr is None:
        wait_for_previous(PDL)
    # Without this the compiler may wait after every matrix instruction.
    tl.assume(begin < end)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for _ in range(begin, end, BLOCK_K):
        weight = tl.load(weight_tile_ptr, eviction_policy="evict_first")
        # L1 may hold what was there before x.
        x = tl.load(x_tile_ptr, mask=here, other=0.0, cache_modifier="" if delta_ptr is None else ".cg")
        acc = tl.dot(weight, x.T, acc)
        weight_tile_ptr += BLOCK_K
        x_tile_ptr += BLOCK_K
    if delta_ptr is not None:
        wait_for_previous(PDL)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)

    if SPLIT_K_PARTIALS:
        out_ptr += split.to(tl.int64) * stride_out_partial
    elif splits > 1:
        places = local_rows[:, None] * BLOCK_M + members[None, :]
        tile_ptr = partial_ptr + tile * BLOCK_N * BLOCK_M + places
        stride_split = tl.num_programs(0) * BLOCK_N * BLOCK_M
        tl.store(tile_ptr + split * stride_split, acc)
        if not is_last(arrived_ptr + tile, splits):
            return
        acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        for index in range(splits):
            acc += tl.load(tile_ptr + index * stride_split, cache_modifier=".cg")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + weight_rows).to(tl.float32)[:, None]
    if delta_ptr is not None:
        delta_ptrs = delta_ptr + members.to(tl.int64)[None, :] * outputs + weight_rows[:, None]
        acc += tl.load(delta_ptrs, mask=(members < tokens)[None, :], other=0.0)
    out = acc.to(out_ptr.dtype.element_ty)
    if ACTIVATION is None:
        rows = tile * BLOCK_N + local_rows
        row_end = outputs
    else:
        gate, up = out.to(tl.float32).reshape(BLOCK_N // 16, 2, 8, BLOCK_M).permute(0, 2, 3, 1).split()
        out = gated_activation(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty).reshape(BLOCK_N // 2, BLOCK_M)
        rows = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        row_end = outputs // 2
    out_tile_ptr = out_ptr + members.to(tl.int64)[None, :] * stride_out_token + rows[:, None]
    stored = (members < tokens)[None, :] & (rows < row_end)[:, None]
    tl.store(out_tile_ptr, out, mask=stored)


_WRITES = ("out", "partial", "arrived")
_launch = Launcher(skinny_linear_kernel, writes=_WRITES, dependents="after the wait")
_launch_after_delta = Launcher(
    skinny_linear_kernel,
    writes=_WRITES,
    reads_early=("x", "weight"),
    dependents="after the wait",
    name="skinny_linear_after_delta",
)


def skinny_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    settings: Mapping[str, int],
    delta: Tensor | None = None,
) -> None:
    """Launches the kernel: arguments as of `linear`. `settings`: the tile of a thread block, and `splits` of the
    inputs, none of them empty. It reduces their partials unless `out` has room for each. `delta` float32 [tokens,
    outputs], contiguous, is added before the activation; not to partials that it leaves. It is waited for at the end:
    the previous kernel, as `lora_delta`, must launch dependents after it has waited, and not write `x`.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    tile = dict(settings)
    splits = tile.pop("splits")
    block_m = padded_tokens(tokens)
    tiles = triton.cdiv(outputs, tile["BLOCK_N"])
    keeps_partials = out.dim() == 3
    num_partials = splits * tiles * tile["BLOCK_N"] * block_m if splits > 1 and not keeps_partials else 0
    (_launch if delta is None else _launch_after_delta)(
        (tiles, splits),
        (x, weight, bias, delta, out, x.new_empty(num_partials, dtype=torch.float32), arrivals(x.device, tiles)),
        (inputs, outputs, x.stride(0), weight.stride(0), out.stride(0) if keeps_partials else 0, out.stride(-2)),
        (tokens, splits),
        ACTIVATION=activation,
        SPLIT_K_PARTIALS=keeps_partials,
        BLOCK_M=block_m,
        **tile,
    )


def filled_splits(inputs: int, block_k: int, splits: int) -> int:
    """How many of `splits` splits of the blocks of the inputs are not empty."""
    blocks = -(-inputs // block_k)
    return -(-blocks // -(-blocks // splits))

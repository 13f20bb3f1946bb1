"""GEMV of one token in 16 or 32 bits, with RMSNorm as prologue and activation or residual addition as epilogue.

    out = activation(norm(x) @ weight.T + bias), and with `adds` what was in `out` besides

Layouts, types and rounding are those of `token_linear`; `weight` is `[outputs, inputs]`. A thread block keeps whole
rows of the weight in registers: a matrix instruction would leave 15 of its 16 rows empty and needs its operands in
shared memory first. No kernel writes a dense weight, so a thread block prefetches its rows before
`griddepcontrol.wait`, while the previous kernel computes a norm or attention.

The norm's scale multiplies the dot products, in float32, so that they do not wait for the sum of squares. The residual
is loaded together with the token. With an `Exchange` as `out` the thread blocks send their outputs to the memory of all
ranks, and `allreduce_add_norm_receive` is to follow.

`token_linear` and `send_linear` call it; `moe/experts_gemv.py` shares its loads and stores.
Bytes floor: outputs * inputs * element size. On an H200 the logits of Qwen3-30B-A3B are read at 4.8 TB/s.
Lab: docs/lab/2026-11-single-token-decode.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from torch import Tensor

from ..collectives.exchange import Exchange, boxes_of, send_to_all
from ..norm.activations import gated_activation
from ..norm.rms_norm import normalise_row
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from .gemv_blocks import gemv_blocks
from .rows import weight_rows_of


@triton.jit
def read_weights(weight_ptrs, inside, MASK: tl.constexpr):
    """Weights, which no other thread block reads; 0 outside. A mask costs registers and waits."""
    if MASK:
        return tl.load(weight_ptrs, mask=inside, other=0.0, eviction_policy="evict_first")
    return tl.load(weight_ptrs, eviction_policy="evict_first")


@triton.jit
def add_rest_of_rows(acc, weight_ptrs, x_ptrs, columns, inputs, BLOCK_K: tl.constexpr, MASK: tl.constexpr):
    """Adds to `acc` [rows], float32, the dot products over all inputs after the first BLOCK_K."""
    for begin in range(BLOCK_K, inputs, BLOCK_K):
        inside = columns < inputs - begin
        weight = read_weights(weight_ptrs + begin, inside[None, :], MASK)
        x = tl.load(x_ptrs + begin, mask=inside, other=0.0).to(tl.float32)
        acc += tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    return acc


@triton.jit
def load_residual(out_ptrs, mask, ADDS: tl.constexpr):
    """The residual that `store_with_residual` adds, loaded before the result is there; zeros without ADDS."""
    if ADDS:
        return tl.load(out_ptrs, mask=mask, other=0.0).to(tl.float32)
    else:
        return tl.zeros(mask.shape, tl.float32)


@triton.jit
def store_with_residual(out_ptrs, out, before, mask, ADDS: tl.constexpr):
    """Rounds and stores `out`; with ADDS its sum with the residual `before` is rounded once more."""
    out = out.to(out_ptrs.dtype.element_ty)
    if ADDS:
        out = (before + out.to(tl.float32)).to(out_ptrs.dtype.element_ty)
    tl.store(out_ptrs, out, mask=mask)


@triton.jit
def bf16_gemv_kernel(
    x_ptr,  # [rows, inputs]
    weight_ptr,  # [outputs, inputs]
    bias_ptr,  # [outputs] or None
    norm_ptr,  # [inputs] or None: the weight of the norm that is fused as prologue
    normalised_ptr,  # [inputs] or None: where the normalised token is written
    out_ptr,  # [rows, outputs or, with ACTIVATION, outputs / 2], or None: the row is sent to all ranks
    control_ptr,  # of the ranks' memory, or None
    inputs,
    outputs,
    stride_x_row,
    stride_weight_output,
    stride_out_row,
    eps,
    ADDS: tl.constexpr,  # whether outputs are added to what is in `out`
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WHOLE: tl.constexpr,  # whether BLOCK_K is at least `inputs`
    MASK: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    PDL: tl.constexpr,
    RANK: tl.constexpr = 0,
    WORLD: tl.constexpr = 0,
    SET_BYTES: tl.constexpr = 0,
    BITS: tl.constexpr = None,
    NOTHING: tl.constexpr = 0,
):
    """One thread block computes BLOCK_N outputs of one row."""
    block = tl.program_id(0)
    row = tl.program_id(1)
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, ACTIVATION is not None)
    columns = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + columns[None, :]
    weight = read_weights(weight_ptrs, (columns < inputs)[None, :], MASK)
    if norm_ptr is not None:
        norm_weight = tl.load(norm_ptr + columns, mask=columns < inputs, other=0.0)
    wait_for_previous(PDL)
    if control_ptr is not None:
        boxes = boxes_of(control_ptr, outputs, RANK, WORLD, SET_BYTES, BITS)
    # Not earlier: the next kernel relies on all kernels before this one being finished.
    launch_dependents(PDL)
    if ACTIVATION is None:
        places = block * BLOCK_N + tl.arange(0, BLOCK_N)
        end = outputs
    else:
        places = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        end = outputs // 2
    if control_ptr is None:
        out_ptrs = out_ptr + row.to(tl.int64) * stride_out_row + places
        before = load_residual(out_ptrs, places < end, ADDS)
    x_ptrs = x_ptr + row.to(tl.int64) * stride_x_row + columns
    x = tl.load(x_ptrs, mask=columns < inputs, other=0.0).to(tl.float32)
    if norm_ptr is not None:
        if block == 0:
            normalised = normalise_row(x, norm_weight.to(tl.float32), inputs, eps, norm_ptr.dtype.element_ty)
            tl.store(normalised_ptr + columns, normalised.to(x_ptr.dtype.element_ty), mask=columns < inputs)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / inputs + eps)
        x *= norm_weight.to(tl.float32)
    acc = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    if norm_ptr is not None:
        # After the dot products, so that they do not wait for the sum of squares.
        acc *= scale
    if not WHOLE:
        acc = add_rest_of_rows(acc, weight_ptrs, x_ptrs, columns, inputs, BLOCK_K, MASK)

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + weight_rows).to(tl.float32)
    if ACTIVATION is None:
        out = acc
    else:
        acc = acc.to(x_ptr.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.reshape(acc, [BLOCK_N // 2, 2]))
        out = gated_activation(gate, up, ACTIVATION)
    if control_ptr is None:
        store_with_residual(out_ptrs, out, before, places < end, ADDS)
    else:
        send_to_all(boxes, out.to(x_ptr.dtype.element_ty), places, places < end, WORLD, BITS, NOTHING)


_launch = Launcher(
    bf16_gemv_kernel,
    writes=("out", "normalised"),
    reads_early=("weight", "norm"),
    dependents="after the wait",
)


def bf16_gemv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor | Exchange,
    activation: str | None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    normalised: Tensor | None = None,
    adds: bool = False,
) -> None:
    """Launches the GEMV of each row of `x` with `weight` [outputs, inputs]. With an `Exchange` there is a single row,
    and `allreduce_add_norm_receive` is to follow.
    """
    outputs, inputs = weight.shape
    config = gemv_blocks(weight, norm is not None, activation is not None, adds)
    if isinstance(out, Exchange):
        rows, stride, target, sent = 1, 0, (None, out.control), {"RANK": out.rank, **out.constants(x)}
    else:
        rows, stride, target, sent = out.shape[0], out.stride(0), (out, None), {}
    _launch(
        (triton.cdiv(outputs, config["BLOCK_N"]), rows),
        (x, weight, bias, norm, normalised, *target),
        (inputs, outputs, x.stride(0), weight.stride(0), stride),
        (eps,),
        ADDS=adds,
        ACTIVATION=activation,
        MASK=inputs % config["BLOCK_K"] != 0,
        **config,
        **sent,
    )

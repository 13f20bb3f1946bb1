"""W8A8 GEMV of one token, with quantisation as prologue and bias and activation as epilogue.

The formula and layouts are those of `w8a8_linear`, which calls it for scales by weight row. As in `bf16_gemv.py` a
thread block keeps whole rows of the weight in registers and prefetches them before `griddepcontrol.wait`.

A float8 becomes float32 by two conversions, of which the first takes two values, and one fused multiply-add: 4.3
instructions for each weight in all, where a copy of the same bytes leaves time for 7. One instruction (`dp4a`)
multiplies and adds up four int8. Up to 8,192 inputs that are to be float8 are quantised in each thread block, by the
formula of `quantise.py`: one kernel for all of them would have all others wait for it.

Bytes floor: outputs * inputs. On an H200 28672 x 4096 takes 28.9 us in float8, after 1.3 to 2 us of `quantise_rows`.
Lab: docs/lab/2026-11-w8a8-small-batches.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
import torch
from torch import Tensor

from ..norm.quantise import TINY, scale_of
from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton
from .rows import store_outputs, weight_rows_of

_IN_THREAD = 16
"""Neighbours of a row that one thread has, because it loads as many at a time."""
_LONGEST = 4096
"""The most inputs of a row that a thread block loads at a time; it loads the next ones while it multiplies those."""
MOST_QUANTISED = 8192
"""The most inputs that are quantised here. `quantise_rows` quantises more: each thread block would read them twice, and
registers run short.
"""


@triton.jit
def _inputs(x_ptr, columns, inputs, step):
    """Inputs of one step, as float32, or as whole words; 0 outside."""
    begin = step * columns.shape[0]
    x = tl.load(x_ptr + begin + columns, mask=columns < inputs - begin, other=0.0)
    return x if x.dtype == tl.int32 else x.to(tl.float32)


@triton.jit
def _codes(x, inverse):
    """Float8 values of `x`, as float32. `inverse` is 1 / scale."""
    return tl.clamp(x * inverse, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.float32)


@triton.jit
def _read(weight_ptrs, columns, inputs, step, MASK: tl.constexpr):
    """Weights of one step, which no other thread block reads; 0 outside."""
    begin = step * columns.shape[0]
    if MASK:
        inside = (columns < inputs - begin)[None, :]
        return tl.load(weight_ptrs + begin, mask=inside, other=0.0, eviction_policy="evict_first")
    else:
        return tl.load(weight_ptrs + begin, eviction_policy="evict_first")


@triton.jit
def _partial_dots(weight, x, IN_THREAD: tl.constexpr, PLAIN: tl.constexpr):
    """[BLOCK_N, BLOCK_K / IN_THREAD]: sums over what one thread has."""
    BLOCK_N: tl.constexpr = weight.shape[0]
    CHUNKS: tl.constexpr = weight.shape[1] // IN_THREAD
    if weight.dtype != tl.int32:
        dots = weight.to(tl.float32) * x[None, :]
    elif PLAIN:
        dots = tl.zeros_like(weight)
        for byte in tl.static_range(4):
            dots += (weight << (24 - 8 * byte) >> 24) * (x << (24 - 8 * byte) >> 24)[None, :]
    else:
        dots = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [weight, x[None, :]], dtype=tl.int32, is_pure=True, pack=1
        )
    return tl.sum(tl.reshape(dots, [BLOCK_N, CHUNKS, IN_THREAD]), axis=2)


@triton.jit
def w8a8_gemv_kernel(
    x_ptr,  # [inputs], codes or other numbers
    x_scale_ptr,  # [1] float32, or None: the kernel measures it
    weight_ptr,  # [outputs, inputs] float8, or int32: words of four int8, as those of x
    weight_scale_ptr,  # [outputs] float32
    bias_ptr,  # [outputs] or None
    out_ptr,  # [outputs or, with ACTIVATION, outputs / 2]
    inputs,
    outputs,
    stride_weight_output,
    ACTIVATION: tl.constexpr,  # key of GATED, or None
    BOUND: tl.constexpr,
    TINIEST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STEPS: tl.constexpr,  # of BLOCK_K inputs
    MASK: tl.constexpr,  # whether BLOCK_K does not divide `inputs`
    IN_THREAD: tl.constexpr,
    PLAIN: tl.constexpr,  # no inline PTX
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK_N outputs."""
    QUANTISED: tl.constexpr = x_ptr.dtype.element_ty == weight_ptr.dtype.element_ty
    block = tl.program_id(0)
    weight_rows = weight_rows_of(block, outputs, BLOCK_N, ACTIVATION is not None)
    columns = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + weight_rows.to(tl.int64)[:, None] * stride_weight_output + columns[None, :]
    weights = (_read(weight_ptrs, columns, inputs, 0, MASK and STEPS == 1),)
    weight_scale = tl.load(weight_scale_ptr + weight_rows)
    wait_for_previous(PDL)
    launch_dependents(PDL)

    if x_scale_ptr is not None:
        x_scale = tl.load(x_scale_ptr)
    else:
        most = tl.zeros([BLOCK_K], dtype=tl.int32)
        for step in tl.static_range(STEPS):
            x = _inputs(x_ptr, columns, inputs, step)
            most = tl.maximum(most, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        x_scale = scale_of(most.to(tl.float32, bitcast=True), 0, BOUND, 448.0, TINIEST)
    inverse = None
    if not QUANTISED:
        inverse = tl.div_rn(1.0, x_scale)
    for step in tl.static_range(STEPS):
        if step + 1 < STEPS:
            weights += (_read(weight_ptrs, columns, inputs, step + 1, MASK and step + 2 == STEPS),)
        x = _inputs(x_ptr, columns, inputs, step)
        dots = _partial_dots(weights[step], x if QUANTISED else _codes(x, inverse), IN_THREAD, PLAIN)
        acc = dots if step == 0 else acc + dots  # noqa: F821

    sums = tl.sum(acc, axis=1).to(tl.float32) * x_scale * weight_scale
    store_outputs(sums, bias_ptr, weight_rows, out_ptr, block, outputs, ACTIVATION, BLOCK_N)


_launch = Launcher(
    w8a8_gemv_kernel, writes=("out",), reads_early=("weight", "weight_scale"), dependents="after the wait"
)


def w8a8_blocks(inputs: int, quantises: bool) -> dict[str, int]:
    """Launch settings of `w8a8_gemv`. `quantises`: `x` is not quantised yet. Rows that are longer than a step and no
    multiple of it have steps of half as many inputs, and thread blocks of half as many threads.
    """
    block_k = min(_LONGEST, 1 << (inputs - 1).bit_length())
    if quantises:
        return {"BLOCK_N": 8 * _LONGEST // block_k, "BLOCK_K": block_k, "num_warps": 4}
    if inputs > _LONGEST and inputs % _LONGEST:
        return {"BLOCK_N": 4, "BLOCK_K": _LONGEST // 2, "num_warps": 2}
    return {"BLOCK_N": 4 * _LONGEST // block_k, "BLOCK_K": block_k, "num_warps": 4}


def w8a8_gemv(
    x: Tensor,
    x_scale: Tensor | None,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None,
    bound: float,
) -> None:
    """Launches the GEMV: arguments as of `w8a8_linear`."""
    outputs, inputs = weight8.shape
    config = w8a8_blocks(inputs, x.dtype != weight8.dtype)
    steps, words = triton.cdiv(inputs, config["BLOCK_K"]), 1
    if weight8.dtype == torch.int8:
        # Sizes count words then.
        x, weight8, words = x[0].view(torch.int32), weight8.view(torch.int32), 4
    _launch(
        (triton.cdiv(outputs, config["BLOCK_N"]),),
        (x, x_scale, weight8, weight_scale, bias, out),
        (inputs // words, outputs, weight8.stride(0)),
        ACTIVATION=activation,
        BOUND=bound,
        TINIEST=TINY,
        STEPS=steps,
        MASK=inputs % config["BLOCK_K"] != 0,
        IN_THREAD=_IN_THREAD // words,
        PLAIN=not x.is_cuda or torch.version.cuda is None,
        **config | {"BLOCK_K": config["BLOCK_K"] // words},
    )

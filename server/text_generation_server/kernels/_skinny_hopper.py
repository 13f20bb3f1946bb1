"""The kernel behind `skinny_linear` and `linear_in_parts` for 33 to 64 tokens on Hopper cards (compute capability 9.0).

It is that of `skinny_linear.py` but for how tiles come: the tensor memory accelerator copies whole ones, so that no
thread computes addresses, and of gate and up each has a tile and sums of its own.

Measured on an H200 with 64 tokens and attention over 2,048 positions: a layer of one of two ranks of a 70B takes 297 us
instead of 301, of an 8B 256 instead of 258. The card draws the 700 W that it may there and lowers its clock to 1.5 to
1.8 GHz, so that it counts how little is done for a byte. For fewer tokens it is left out: 191.6 us of the 8B instead of
190.8 with 32, 156.9 instead of 155.6 with 16 (benchmark/results/linear_layers.json). What evens out the last wave of
programs, for a Qwen2.5-7B, was tried and left out: a layer takes 1.2 % less at best (docs/benchmark.md).
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false
from collections.abc import Mapping

from torch import Tensor

from ._activations import gated_activation
from ._device import is_hopper
from ._launch import Launcher, let_next_start, wait_for_previous
from ._scaled_product import padded_tokens
from ._triton import TensorDescriptor, tl, triton

_LEAST_TOKENS = 33
_ROWS_OF_A_WARP, _LEAST_ROWS = 16, 64
"""Four warps are what a matrix instruction takes."""


@triton.jit(do_not_specialize=["tokens", "splits"])
def skinny_hopper_kernel(
    x_tiles,  # of BLOCK_M x BLOCK_K of [tokens, inputs]
    weight_tiles,  # of BLOCK_N x BLOCK_K of [outputs, inputs]
    out_ptr,  # [tokens, outputs], with an activation [tokens, outputs / 2], or [splits, tokens, outputs] float32
    bias_ptr,  # [outputs] or None
    inputs,  # a multiple of BLOCK_K
    outputs,
    stride_out_part,
    stride_out_token,
    tokens,
    splits,
    ACTIVATION: tl.constexpr,  # key of GATED or None
    BLOCK_M: tl.constexpr,  # at least tokens
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes BLOCK_N outputs of all tokens, over one of `splits` parts of the inputs. What tiles have
    past the end of a matrix is zero.
    """
    split = tl.program_id(1)
    part = tl.cdiv(tl.cdiv(inputs, BLOCK_K), splits) * BLOCK_K
    begin = split * part
    end = tl.minimum(begin + part, inputs)
    first = tl.program_id(0) * BLOCK_N
    size = outputs if ACTIVATION is None else outputs // 2

    wait_for_previous(PDL)
    # See `skinny_linear_kernel`.
    tl.assume(begin < end)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    up_acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for column in range(begin, end, BLOCK_K):
        x = x_tiles.load([0, column]).T
        acc = tl.dot(weight_tiles.load([first, column]), x, acc)
        if ACTIVATION is not None:
            up_acc = tl.dot(weight_tiles.load([size + first, column]), x, up_acc)
    # Not earlier: a kernel that has waited relies on all before the last product being finished.
    let_next_start(PDL)

    TYPE: tl.constexpr = out_ptr.dtype.element_ty
    rows = first + tl.arange(0, BLOCK_N)
    exists = rows < size
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + rows, mask=exists, other=0.0).to(tl.float32)[:, None]
    out = acc.to(TYPE)
    if ACTIVATION is not None:
        if bias_ptr is not None:
            up_acc += tl.load(bias_ptr + size + rows, mask=exists, other=0.0).to(tl.float32)[:, None]
        out = gated_activation(out.to(tl.float32), up_acc.to(TYPE).to(tl.float32), ACTIVATION).to(TYPE)
    members = tl.arange(0, BLOCK_M)
    out_ptr += split.to(tl.int64) * stride_out_part
    out_tile_ptr = out_ptr + members.to(tl.int64)[None, :] * stride_out_token + rows[:, None]
    tl.store(out_tile_ptr, out, mask=(members < tokens)[None, :] & exists[:, None])


_launch = Launcher(skinny_hopper_kernel)


def takes_tiles(x: Tensor, weight: Tensor, rows: int) -> bool:
    """Whether the kernel is for these, of those that `skinny_linear_kernel` reads, with so many rows in a tile."""
    addresses = x.data_ptr() | weight.data_ptr()
    fits = x.shape[0] >= _LEAST_TOKENS and rows >= _LEAST_ROWS and addresses % 16 == 0
    return fits and x.is_cuda and is_hopper(x.device)


def tile_rows(tile: Mapping[str, int], activation: str | None) -> int:
    """Of a matrix that a tile has, of gate and up each."""
    return tile["BLOCK_N"] if activation is None else tile["BLOCK_N"] // 2


def skinny_hopper(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    tile: Mapping[str, int],
    splits: int,
    activation: str | None,
) -> None:
    """With an `out` for each of `splits` parts, or one part. `tile` as of `skinny_linear_kernel`."""
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    block_m, rows, block_k = padded_tokens(tokens), tile_rows(tile, activation), tile["BLOCK_K"]
    _launch(
        (triton.cdiv(out.shape[-1], rows), splits),
        (out, bias),
        (inputs, outputs, out.stride(0) if out.dim() == 3 else 0, out.stride(-2)),
        (tokens, splits),
        (
            TensorDescriptor.from_tensor(x, [block_m, block_k]),
            TensorDescriptor.from_tensor(weight, [rows, block_k]),
        ),
        ACTIVATION=activation,
        BLOCK_M=block_m,
        BLOCK_N=rows,
        BLOCK_K=block_k,
        num_warps=rows // _ROWS_OF_A_WARP,
        num_stages=tile["num_stages"],
    )

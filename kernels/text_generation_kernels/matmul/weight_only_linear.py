"""Weight-only quantised linear layer (W4A16, W8A16): 16-bit tokens by codes in groups.

    out = x[:, perm] @ weight.T + bias, weight = (code - zero) * scale or table[code] * scale
    out = activation(gate) * up, with `activation`, where gate and up are the halves of that

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]`, or `[tokens, outputs / 2]` with `activation`, unit stride in
the last dimension, one floating type; the activations are those of `act_and_mul`.
`packed` as `pack_codes` makes it, or float8 `[outputs, inputs]`; `scales` and `zeros` as `pack_scales` makes them, with
the `group_size` that it returns (0: all inputs are one group); `table` [16] float32, `perm` [inputs] int64, `bias`
`[outputs]`, each or None. Zeros that are not given are 2 ** (bits - 1). Groups of another size than 32, 64, 128 or a
multiple of 128 are right, but slow. ValueError for an unknown activation and for shapes that do not fit.

`w4a16_gemv.py` computes a single token with 4-bit codes in groups of 128 without a table. Up to 512 tokens a data file
says whether `weight_only_gemm.py` is faster or a GEMM with a 16-bit matrix, which `dequantise` writes into scratch
memory of at most 512 MiB; the latter computes more tokens. On Hopper cards data files also name
`w4a16_small_hopper.py`, for 9 to 32 tokens and many outputs, and `w4a16_large_hopper.py`, from 129 tokens on. Batches
that are padded to one size give a token the same result to the bit, whichever others are there.

A layer calls it for each of its GEMMs. Bytes floor: outputs * inputs * bits / 8, and the scales. On an H200 57344 x
8192 with one token runs at 87 % of a copy's bandwidth. Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic
from collections.abc import Mapping

import torch
from torch import Tensor

from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..norm.activations import GATED
from ..runtime.device import shared_kib
from ..runtime.launch import compiling_only
from ..runtime.register import register
from ..runtime.settings import nearest
from .dequantise import dequantise
from .group_quantisation import BLOCK, group_values
from .w4a16_gemv import takes_gemv, w4a16_gemv
from .w4a16_large_hopper import takes_large, w4a16_large_hopper
from .w4a16_small_hopper import small_settings, w4a16_small_hopper
from .weight_only_gemm import weight_only_gemm

MAX_TOKENS = 512
"""The most tokens of the Triton kernel; a data file says where it is faster."""
_FEW = 64
"""The most tokens that are one tile."""
_SOME = 128
"""More tokens are for `w4a16_large_hopper.py`, where it takes them and a data file says so."""
_MANY = (128, 256, 512, 1024, 2048, 4096)
"""Numbers of tokens above `_FEW` that have launch settings of their own."""
_SMALLEST_TILE = 8
"""The fewest tokens of a tile."""
_SCRATCH_BYTES = 512 << 20
"""The most bytes of the 16-bit matrix; larger ones are dequantised in chunks of outputs. Chunks that stay in the L2
cache (16 to 64 MiB) are slower on an H200, because cuBLAS's GEMMs with them are small.
"""


def weight_only_linear_triton(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
    activation: str | None = None,
) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and for shapes that do not fit.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    _check(x, packed, bias, out, activation)
    tokens, outputs = len(x), len(packed)
    if tokens == 0:
        return
    if perm is not None:
        x = x.index_select(1, perm)
    fits = _fits(x, packed, scales, out, group_size)
    if tokens == 1 and fits and takes_gemv(x, packed, scales, table):
        w4a16_gemv(x, packed, scales, zeros, bias, out, activation)
        return
    result = out if activation is None else out.new_empty(tokens, outputs)
    sizes: tuple[int, ...] = (max(_SMALLEST_TILE, 1 << (tokens - 1).bit_length()),)
    if tokens > _FEW and compiling_only():
        # The compile dry run does not see every number of tokens.
        sizes = _MANY
    for size in sizes:
        if fits and (config := small_settings(x, packed, scales, table, size)) is not None:
            w4a16_small_hopper(x, packed, scales, zeros, bias, result, config)
            continue
        many = fits and size > _SOME and takes_large(x, packed, scales, table)
        config = settings(x, packed, size, many, table is not None)
        if many and config["splits"]:
            w4a16_large_hopper(x, packed, scales, zeros, bias, result, config)
        elif fits and size <= MAX_TOKENS and config["splits"]:
            weight_only_gemm(x, packed, scales, zeros, table, bias, result, config)
        else:
            dequantise_and_matmul(x, packed, scales, zeros, table, bias, result, group_size)
    if activation is not None:
        act_and_mul_triton(result, activation, out)


def _check(x: Tensor, packed: Tensor, bias: Tensor | None, out: Tensor, activation: str | None) -> None:
    tokens, inputs = x.shape
    outputs = packed.shape[0]
    width = -(-inputs // BLOCK) * BLOCK // 8 if packed.dtype == torch.int32 else inputs
    written = outputs if activation is None else outputs / 2
    if packed.shape[1] != width or out.shape != (tokens, written) or (bias is not None and bias.shape != (outputs,)):
        shapes = [tuple(tensor.shape) for tensor in (x, packed, bias, out) if tensor is not None]
        raise ValueError(f"weight_only_linear: shapes of x, packed, bias, out do not fit: {shapes}")
    if activation is not None and activation not in GATED:
        raise ValueError(f"weight_only_linear: unknown activation {activation!r}, use one of {', '.join(GATED)}")


def settings(x: Tensor, packed: Tensor, tokens: int, many: bool, looked_up: bool = False) -> Mapping[str, int]:
    """Launch settings of the kernel for about `tokens` tokens; `splits` is 0 where a 16-bit matrix is faster.

    `many`: those of the kernel for more than 128. `looked_up`: a table looks codes up, whose entries take registers and
    shared memory.
    """
    shape = {"outputs": packed.shape[0], "inputs": x.shape[1]}
    if many:
        return nearest("w4a16_large_hopper", **shape, tokens=tokens)
    bits = 4 if packed.dtype == torch.int32 else 8
    sizes = {"bits": bits, **shape, "tokens": tokens, "table": 1 + looked_up}
    return nearest("weight_only_linear", shared_kib=shared_kib(x.device), **sizes)


def _fits(x: Tensor, packed: Tensor, scales: Tensor, out: Tensor, group_size: int) -> bool:
    """Whether the kernels take these tensors."""
    return (
        x.element_size() == 2
        and x.dtype == out.dtype
        and x.stride(1) == out.stride(1) == packed.stride(1) == 1
        and (group_size == 0 or scales.dim() == 3)
    )


def dequantise_and_matmul(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
) -> None:
    """Dequantises a chunk of outputs at a time to 16 bits, and multiplies by it with cuBLAS."""
    outputs, inputs = packed.shape[0], x.shape[1]
    chunk = max(1, _SCRATCH_BYTES // (inputs * x.element_size()))
    matrix = x.new_empty(min(chunk, outputs), inputs)
    for first in range(0, outputs, chunk):
        rows = slice(first, min(first + chunk, outputs))
        weight = matrix[: rows.stop - first]
        dequantise(
            packed[rows],
            scales[:, rows],
            None if zeros is None else zeros[:, rows],
            table,
            weight,
            group_size,
        )
        torch.mm(x, weight.t(), out=out[:, rows])
    if bias is not None:
        out += bias


def weight_only_linear_torch(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    table: Tensor | None,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    group_size: int,
    activation: str | None = None,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Computes in float32."""
    x = (x if perm is None else x[:, perm]).float()
    result = x @ group_values(packed, scales, zeros, table, x.shape[1], group_size).t()
    result = result if bias is None else result + bias.float()
    if activation is None:
        out.copy_(result)
    else:
        act_and_mul_torch(result.to(out.dtype), activation, out)


weight_only_linear = register(weight_only_linear_torch, mutates=("out",), triton=weight_only_linear_triton)

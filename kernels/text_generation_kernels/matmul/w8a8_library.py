"""W8A8 GEMMs of torch's libraries for many tokens: three algorithms.

ROWS: CUTLASS's float8 GEMM, which applies scales of rows itself (`torch._scaled_mm`).
SUMS: cuBLAS's float8 or int8 GEMM without scales; a kernel then scales the float32 or int32 sums, which are written and
read once more.
BLOCKS: cuBLAS's float8 GEMM with a scale for each 128 inputs, for sm_90 alone and from CUDA 12.9 on. The scales of one
block of inputs begin at multiples of 16 bytes there, so tokens are padded to a multiple of four.

`w8a8_linear` calls it, with the algorithm that a data file names; `w8a8_ladder.py` says which operands each takes.
"""

# pyright: basic, reportArgumentType=false, reportPrivateImportUsage=false
from functools import cache

import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.triton import tl, triton

ROWS, SUMS, BLOCKS = "cutlass_rows", "cublas_sums", "cublas_blocks"
_CHUNK = 2048
"""The most tokens whose sums exist at a time: 235 MB for 28672 outputs."""
_SCALE_BLOCK = 1024
_ALIGNED = 4
"""Tokens of the BLOCKS algorithm are a multiple of this."""


@triton.jit
def scale_sums_kernel(
    sums_ptr,  # [tokens, outputs] float32 or int32
    x_scale_ptr,  # [tokens] float32
    weight_scale_ptr,  # [outputs] float32
    bias_ptr,  # [outputs] or None
    out_ptr,  # [tokens, outputs]
    outputs,
    stride_x_scale_token,
    stride_out_token,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One thread block scales BLOCK_N sums of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = columns < outputs
    weight_scale = tl.load(weight_scale_ptr + columns, mask=valid, other=0.0)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x_scale = tl.load(x_scale_ptr + token * stride_x_scale_token)
    out = tl.load(sums_ptr + token * outputs + columns, mask=valid, other=0.0).to(tl.float32)
    out = out * x_scale * weight_scale
    if bias_ptr is not None:
        out += tl.load(bias_ptr + columns, mask=valid, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * stride_out_token + columns, out.to(out_ptr.dtype.element_ty), mask=valid)


_launch = Launcher(scale_sums_kernel, writes=("out",), reads_early=("weight_scale",))


def library_gemm(
    algorithm: str, x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Computes what `w8a8_ladder.library_settings` has agreed to."""
    if algorithm == SUMS:
        # Chunks of equal size: a short last one might have 16 tokens or fewer, which the library refuses for int8.
        chunks = -(-len(x8) // _CHUNK)
        for chunk8, chunk_scale, chunk_out in zip(
            *(each.tensor_split(chunks) for each in (x8, x_scale, out)), strict=True
        ):
            _scale(_sums(chunk8, weight8), chunk_scale, weight_scale, bias, chunk_out)
        return
    if algorithm == BLOCKS and len(x8) % _ALIGNED:
        missing = -len(x8) % _ALIGNED
        x8, x_scale = (torch.cat((rows, rows[:missing])) for rows in (x8, x_scale))
        padded = out.new_empty(len(x8), len(weight8))
        library_gemm(algorithm, x8, x_scale, weight8, weight_scale, bias, padded)
        out.copy_(padded[: len(out)])
        return
    if algorithm == ROWS:
        scales = x_scale[:, None], weight_scale[None, :]
    else:
        # The library takes the scales of one block of inputs side by side, those of 128 x 128 as they are.
        rows = weight_scale if len(weight_scale) != len(weight8) else weight_scale.t().contiguous().t()
        scales = x_scale.t().contiguous().t(), rows.t()
    # They store contiguous 16-bit results.
    direct = out.is_contiguous() and out.element_size() == 2
    result = out if direct else out.new_empty(out.shape, dtype=torch.bfloat16 if out.element_size() > 2 else None)
    torch._scaled_mm(x8, weight8.t(), *scales, out_dtype=result.dtype, use_fast_accum=algorithm == ROWS, out=result)
    if bias is not None:
        torch.add(result, bias, out=out)
    elif not direct:
        out.copy_(result)


def _sums(x8: Tensor, weight8: Tensor) -> Tensor:
    if x8.dtype == torch.int8:
        return torch._int_mm(x8, weight8.t())
    one = _one(x8.device)
    return torch._scaled_mm(x8, weight8.t(), one, one, out_dtype=torch.float32, use_fast_accum=True)


def _scale(sums: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None, out: Tensor) -> None:
    tokens, outputs = out.shape
    _launch(
        (tokens, triton.cdiv(outputs, _SCALE_BLOCK)),
        (sums, x_scale, weight_scale, bias, out),
        (outputs, x_scale.stride(0), out.stride(0)),
        BLOCK_N=_SCALE_BLOCK,
        num_warps=4,
    )


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), dtype=torch.float32, device=device)

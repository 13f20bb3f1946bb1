"""Sums of residual streams, with coefficients of each token (AltUp of Gemma 3n, Baykal et al., 2023;
hyper-connections of GLM 5.3, Xie et al., 2026).

    out[t, i] = base[t, i] + sum over j of coefs[t, i, j] * x[t, j]

Layouts: `base`, `out` `[tokens, m, n]` and `x` `[tokens, k, n]`, one floating type for all, unit stride in the last
dimension, any other strides; `coefs` `[tokens, m, k]` float32, contiguous. `out` may be `base`, and is no part of `x`.
Sums are computed in float32, j after j, and rounded once, so a token does not depend on the others.

Called twice a layer. Raises ValueError for layouts that the kernel does not read. Bytes floor: tokens * n * (2 m + k) *
element size (read base and x, write out), m * n less where `base` is `x`.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton


@triton.jit
def mix_streams_kernel(
    base_ptr,  # [tokens, M, n]
    coefs_ptr,  # [tokens, M, K], float32
    x_ptr,  # [tokens, K, n]
    out_ptr,  # [tokens, M, n]
    n,
    stride_base_token,
    stride_base_stream,
    stride_x_token,
    stride_x_stream,
    stride_out_token,
    stride_out_stream,
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK columns of all streams of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < n
    launch_dependents(PDL)
    wait_for_previous(PDL)
    for i in tl.static_range(M):
        base = base_ptr + token * stride_base_token + i * stride_base_stream
        total = tl.load(base + columns, mask=valid, other=0.0).to(tl.float32)
        for j in tl.static_range(K):
            # The first stream brings them to the L1 cache for the others.
            x = tl.load(x_ptr + token * stride_x_token + j * stride_x_stream + columns, mask=valid, other=0.0)
            total += tl.load(coefs_ptr + (token * M + i) * K + j) * x.to(tl.float32)
        out = out_ptr + token * stride_out_token + i * stride_out_stream
        tl.store(out + columns, total.to(out_ptr.dtype.element_ty), mask=valid)


_launch = Launcher(mix_streams_kernel, writes=("out",))


def mix_streams_triton(base: Tensor, coefs: Tensor, x: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    tokens, m, n = out.shape
    k = coefs.shape[-1]
    if base.shape != out.shape or x.shape != (tokens, k, n) or coefs.shape != (tokens, m, k):
        shapes = [tuple(tensor.shape) for tensor in (base, coefs, x, out)]
        raise ValueError(f"mix_streams: shapes of base, coefs, x, out do not fit: {shapes}")
    if not base.stride(2) == x.stride(2) == out.stride(2) == 1 or not coefs.is_contiguous():
        raise ValueError("mix_streams: the last dimension must have stride 1, and coefs be contiguous")
    if out.numel() == 0:
        return
    config = nearest("act_and_mul", n=n)
    strides = [stride for tensor in (base, x, out) for stride in tensor.stride()[:2]]
    grid = (tokens, triton.cdiv(n, config["BLOCK"]))
    _launch(grid, (base, coefs, x, out), (n, *strides), M=m, K=k, **config)


def mix_streams_torch(base: Tensor, coefs: Tensor, x: Tensor, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    total, wide = base.float(), x.float()
    for j in range(coefs.shape[2]):
        total = total + coefs[:, :, j, None] * wide[:, None, j]
    out.copy_(total)


mix_streams = register(mix_streams_torch, mutates=("out",), triton=mix_streams_triton)

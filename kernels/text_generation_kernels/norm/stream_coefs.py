"""Coefficients of residual streams with hyper-connections (mHC, Xie et al., 2026), of each token, for `mix_streams`.

    pre, post, comb = the three parts of mixes * scale + base, of n, n and n * n elements
    into[t, 0, i] = sigmoid(pre_i) + eps
    back[t, i, j] = comb_ji for j < n,  back[t, i, n] = 2 sigmoid(post_i)

`comb`, [n, n], is the softmax of its rows, plus `eps`, whose columns, then `iterations - 1` times its rows and its
columns, are divided by their sums plus `eps` (Sinkhorn and Knopp, 1967): in the end both sum to about 1.

Layouts: `mixes` `[tokens, (n + 2) * n]`, `base` `[(n + 2) * n]`, `scale` `[3]`, one for each part, `into`
`[tokens, 1, n]`, `back` `[tokens, n, n + 1]`, all float32 and contiguous. A token does not depend on the others.

Called twice a layer. Raises ValueError for layouts that the kernel does not read. It takes the latency of its
iterations, not that of its bytes, tokens * (4 n * n + 8 n) * 4 and less.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.triton import tl, triton


@triton.jit
def stream_coefs_kernel(
    mixes_ptr,  # [tokens, (N + 2) * N]
    base_ptr,  # [(N + 2) * N]
    scale_ptr,  # [3]
    into_ptr,  # [tokens, N]
    back_ptr,  # [tokens, N, N + 1]
    eps,
    iterations,
    N: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least N
    PDL: tl.constexpr,
):
    """One thread block computes one token."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    rows, columns = i[:, None], i[None, :]
    is_stream, inside = i < N, (rows < N) & (columns < N)
    launch_dependents(PDL)
    wait_for_previous(PDL)
    mixes_ptr += token * ((N + 2) * N)
    pre = tl.load(mixes_ptr + i, mask=is_stream, other=0.0) * tl.load(scale_ptr)
    pre += tl.load(base_ptr + i, mask=is_stream, other=0.0)
    tl.store(into_ptr + token * N + i, tl.sigmoid(pre) + eps, mask=is_stream)
    post = tl.load(mixes_ptr + N + i, mask=is_stream, other=0.0) * tl.load(scale_ptr + 1)
    post += tl.load(base_ptr + N + i, mask=is_stream, other=0.0)
    back_ptr += token * (N * (N + 1))
    tl.store(back_ptr + i * (N + 1) + N, 2.0 * tl.sigmoid(post), mask=is_stream)
    place = 2 * N + rows * N + columns
    comb = tl.load(mixes_ptr + place, mask=inside, other=0.0) * tl.load(scale_ptr + 2)
    comb += tl.load(base_ptr + place, mask=inside, other=0.0)
    # Rows beyond the last are of zeros, so that nothing is infinite in them.
    comb = tl.where(columns < N, comb, float("-inf"))
    comb = tl.exp(comb - tl.max(comb, axis=1)[:, None])
    comb = tl.where(inside, comb / tl.sum(comb, axis=1)[:, None] + eps, 0.0)
    comb /= tl.sum(comb, axis=0)[None, :] + eps
    for _ in range(iterations - 1):
        comb /= tl.sum(comb, axis=1)[:, None] + eps
        comb /= tl.sum(comb, axis=0)[None, :] + eps
    tl.store(back_ptr + columns * (N + 1) + rows, comb, mask=inside)


_launch = Launcher(stream_coefs_kernel, writes=("into", "back"))


def stream_coefs_triton(
    mixes: Tensor, base: Tensor, scale: Tensor, eps: float, iterations: int, into: Tensor, back: Tensor
) -> None:
    """Triton implementation. Raises ValueError for layouts that the kernel does not read."""
    (tokens, size), n = mixes.shape, into.shape[2]
    shapes = [tuple(each.shape) for each in (mixes, base, scale, into, back)]
    if shapes != [(tokens, (n + 2) * n), (size,), (3,), (tokens, 1, n), (tokens, n, n + 1)]:
        raise ValueError(f"stream_coefs: shapes of mixes, base, scale, into, back do not fit: {shapes}")
    if any(each.dtype != torch.float32 or not each.is_contiguous() for each in (mixes, base, scale, into, back)):
        raise ValueError("stream_coefs: all tensors must be float32 and contiguous")
    if tokens == 0:
        return
    block = triton.next_power_of_2(n)
    of_model = (float(eps), iterations)
    _launch((tokens,), (mixes, base, scale, into, back), of_model, N=n, BLOCK=block, num_warps=1)


def stream_coefs_torch(
    mixes: Tensor, base: Tensor, scale: Tensor, eps: float, iterations: int, into: Tensor, back: Tensor
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    n = into.shape[2]
    sizes = [n, n, n * n]
    parts = zip(mixes.split(sizes, dim=1), base.split(sizes), scale.unbind(), strict=True)
    pre, post, comb = (mix * factor + added for mix, added, factor in parts)
    into[:, 0] = pre.sigmoid() + eps
    back[:, :, n] = 2.0 * post.sigmoid()
    comb = comb.unflatten(1, (n, n)).softmax(dim=2) + eps
    comb = comb / (comb.sum(dim=1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(dim=2, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=1, keepdim=True) + eps)
    back[:, :, :n] = comb.transpose(1, 2)


stream_coefs = register(stream_coefs_torch, mutates=("into", "back"), triton=stream_coefs_triton)

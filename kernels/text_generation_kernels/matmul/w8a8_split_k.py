"""Split-K W8A8 GEMM of 2 to 64 tokens, whose partials the next kernel reduces.

    sum of out over its first dimension = (x8 * x_scale) @ (weight8 * weight_scale).T

Layouts: `x8`, `x_scale`, `weight8`, `weight_scale` as of `w8a8_linear`, with a scale for each token and each weight
row; `out` float32 `[splits, tokens, outputs]`, contiguous, with `splits` as `w8a8_splits` says; ValueError otherwise.

Where outputs are few, thread blocks that share weight rows split its inputs. `w8a8_linear` lets the last of them reduce
the partials, which go to memory and come back first. The next kernel (`add_rms_norm`) waits for all thread blocks
anyway, and reads the partials instead.

A layer calls it twice for 2 to 64 tokens: for the output and down projections. Bytes floor: outputs * inputs.
Lab: docs/lab/2026-11-w8a8-small-batches.md.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.register import register, triton_enabled
from ._partials import check_partials
from .w8a8_ladder import W8A8, W8A8Problem
from .w8a8_linear import w8a8_linear_torch


def w8a8_splits(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor) -> int:
    """The number of splits that is fastest for this GEMM, 1 where `w8a8_linear` is."""
    if not (x8.is_cuda and triton_enabled()):
        return 1
    choice = W8A8.find(W8A8Problem.of(x8, x_scale, weight8, weight_scale, partials=True))
    return 1 if choice is None else choice.settings["splits"]


def w8a8_split_k_triton(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for another number of splits than `w8a8_splits` says."""
    choice = W8A8.pick(W8A8Problem.of(x8, x_scale, weight8, weight_scale, partials=True))
    check_partials("w8a8_split_k", out, choice.settings["splits"], len(x8), len(weight8))
    choice.kernel.launch(x8, x_scale, weight8, weight_scale, None, out, choice.settings)


def w8a8_split_k_torch(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, out: Tensor) -> None:
    """Torch implementation: everything is in the first partial."""
    out.zero_()
    w8a8_linear_torch(x8, x_scale, weight8, weight_scale, None, out[0])


w8a8_split_k = register(w8a8_split_k_torch, mutates=("out",), triton=w8a8_split_k_triton)

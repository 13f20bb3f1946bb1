"""Split-K GEMM of 2 to 64 tokens in 16 bits, whose partials the next kernel reduces.

    sum of out over its first dimension = x @ weight.T

Layouts: `x`, `weight` as of `linear`; `out` float32 `[splits, tokens, outputs]`, contiguous, with `splits` as
`linear_splits` says; ValueError otherwise.

Where outputs are few, thread blocks that share rows of the weight split its inputs. `linear` lets the last of
them reduce the partials, which go to memory and come back first. The next kernel (`qkv_postprocess`, `add_rms_norm`)
waits for all thread blocks anyway, and reads the partials instead.

A layer calls it for QKV, and on one card for the output and down projections.
Bytes floor: outputs * inputs * element size. On an H200 it saves 2.7 of 260.6 us of a layer of an 8B with 64 tokens.
Lab: docs/lab/2026-11-small-gemms-on-hopper.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.register import register, triton_enabled
from ._partials import check_partials
from .bf16_ladder import BF16, Bf16Problem


def linear_splits(x: Tensor, weight: Tensor) -> int:
    """The number of splits that is fastest for this GEMM, 1 where `linear` is."""
    if not (x.is_cuda and triton_enabled()):
        return 1
    return BF16.pick(Bf16Problem.of(x, weight, x, partials=True)).settings.get("splits", 1)


def leaves_partials(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear_split_k` computes this GEMM, in one split if not in more."""
    if not (x.is_cuda and triton_enabled()):
        return False
    return "split-K partials" in BF16.pick(Bf16Problem.of(x, weight, x, partials=True)).kernel.fuses


def linear_split_k_triton(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for another number of splits than `linear_splits` says."""
    choice = BF16.pick(Bf16Problem.of(x, weight, x, partials=True))
    check_partials("linear_split_k", out, choice.settings.get("splits", 1), len(x), len(weight))
    if "split-K partials" not in choice.kernel.fuses:
        raise ValueError(f"linear_split_k: {choice.kernel.name} leaves no partials; ask `linear_splits` before")
    choice.kernel.launch(x, weight, None, out, None, choice.settings)


def linear_split_k_torch(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Torch implementation: everything is in the first partial."""
    out.zero_()
    torch.mm(x.float(), weight.float().t(), out=out[0])


linear_split_k = register(linear_split_k_torch, mutates=("out",), triton=linear_split_k_triton)

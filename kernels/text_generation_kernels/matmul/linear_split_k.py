"""Split-K GEMM of 2 to 64 tokens in 16 bits, whose partials the next kernel reduces.

    sum of out over its first dimension = x @ weight.T

Layouts: `x`, `weight` as of `skinny_linear`; `out` float32 `[splits, tokens, outputs]`, contiguous, with `splits` as
`linear_splits` says; ValueError otherwise.

Where outputs are few, thread blocks that share rows of the weight split its inputs. `skinny_linear` lets the last of
them reduce the partials, which go to memory and come back first. The next kernel (`qkv_postprocess`, `add_rms_norm`)
waits for all thread blocks anyway, and reads the partials instead.

A layer calls it for QKV, and on one card for the output and down projections.
Bytes floor: outputs * inputs * element size. On an H200 it saves 2.7 of 260.6 us of a layer of an 8B with 64 tokens.
Lab: docs/lab/2026-11-small-gemms-on-hopper.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.device import shared_kib
from ..runtime.register import register, triton_enabled
from ..runtime.settings import nearest
from ._partials import check_partials
from .skinny_linear import MAX_TOKENS, filled_splits, launch, reads
from .w8a8_gemm import padded_tokens


def linear_splits(x: Tensor, weight: Tensor) -> int:
    """The number of splits that is fastest for this GEMM, 1 where `skinny_linear` is."""
    if not (x.is_cuda and triton_enabled() and 1 < len(x) <= MAX_TOKENS):
        return 1
    tile, splits = _settings(x, weight)
    return splits if reads(x, weight, x, tile["BLOCK_K"]) else 1


def _settings(x: Tensor, weight: Tensor) -> tuple[dict[str, int], int]:
    """The tile of a thread block, and the number of splits of the inputs."""
    outputs, inputs = weight.shape
    sizes = {"outputs": outputs, "inputs": inputs, "tokens": padded_tokens(len(x))}
    config = dict(nearest("linear_split_k", shared_kib=shared_kib(x.device), **sizes))
    return config, filled_splits(inputs, config["BLOCK_K"], config.pop("splits"))


def linear_split_k_triton(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for another number of splits than `linear_splits` says."""
    tile, splits = _settings(x, weight)
    check_partials("linear_split_k", out, splits, len(x), len(weight))
    launch(x, weight, None, out, tile, splits)


def linear_split_k_torch(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Torch implementation: everything is in the first partial."""
    out.zero_()
    torch.mm(x.float(), weight.float().t(), out=out[0])


linear_split_k = register(linear_split_k_torch, mutates=("out",), triton=linear_split_k_triton)

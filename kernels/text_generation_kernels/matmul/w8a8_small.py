"""The kernel and launch settings of W8A8 GEMMs of 2 to 64 tokens with split-K partials or a fused activation."""

# pyright: basic, reportArgumentType=false
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..runtime.device import has_fp8_gemms
from .fp8_small_hopper import fp8_small_hopper, hopper_settings
from .ladder import SMALL_BATCH, padded_tokens
from .w8a8_gemm import w8a8_gemm
from .w8a8_linear import tile


class KernelChoice(NamedTuple):
    """A kernel and its launch settings."""

    gemm: Callable[..., None]
    """`w8a8_gemm` or `fp8_small_hopper`."""
    config: Mapping[str, int]


def takes_small(x8: Tensor, x_scale: Tensor, weight_scale: Tensor) -> bool:
    """Whether one of the kernels takes these operands."""
    return (
        1 < len(x8) <= SMALL_BATCH
        and x_scale.dim() == weight_scale.dim() == 1
        and (x8.dtype == torch.int8 or has_fp8_gemms(x8.device))
    )


def kernel_for(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, gated: bool) -> KernelChoice:
    """The fastest kernel. With an activation (`gated`) the inputs are not split."""
    if (config := hopper_settings(x8, x_scale, weight8, weight_scale, gated)) is not None:
        return KernelChoice(fp8_small_hopper, config)
    config = tile(x8, x_scale, weight8, weight_scale, padded_tokens(len(x8)))
    return KernelChoice(w8a8_gemm, {**config, "splits": 1} if gated else config)

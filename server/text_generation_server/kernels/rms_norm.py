"""Root mean square normalisation (Zhang and Sennrich, 2019).

    out = x / sqrt(mean(x ** 2) + eps) * weight

Layouts: `x`, `out` `[tokens, hidden]`, unit stride in the last dimension; `weight` `[hidden]`. `out` may be `x`.
Statistics are float32; the normalised value is rounded to the storage type before the product with `weight`, as
Transformers does.

Called once a forward pass: for the first layer, which has no residual yet.
Bytes floor: 2 * tokens * hidden * element size (read x, write out).
"""

import torch
from torch import Tensor
from torch.nn import functional

from ._register import register


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula above, into a new tensor."""
    if x.dtype == torch.float32:
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Torch implementation on every device."""
    out.copy_(normalise(x, weight, eps))


rms_norm = register(rms_norm_torch, mutates=("out",))
"""rms_norm(x, weight, eps, out)"""

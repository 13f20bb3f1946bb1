"""8-bit activations: symmetric quantisation of rows, in torch and for Triton kernels.

    scale = max(min(amax, bound), 1e-12) / limit        limit is 448 for float8_e4m3fn and 127 for int8
    eight = round(clamp(x / scale, -limit, limit))

A scale is measured over a row (`group` 0) or over each `group` inputs of it, or it is `static`: one number that the
checkpoint gives. `bound` (0: none) is the largest amax that a scale is made for; what is above saturates, as all does:
a cast alone would make it NaN. int8 rounds half to even. NaN stays: in the scale, or in float8 values.
What is quantised are values of the 16-bit type that they are stored in, so it does not matter whether it happens in
the kernel that makes them. The quotient is the product with 1 / scale, which is rounded for itself.
"""

# pyright: basic
import math

import torch
from torch import Tensor

from ._device import has_fp8_products

LIMITS = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The 8-bit types, and the largest number that a value of theirs stands for."""
TINY = 1e-12
"""The smallest amax that a scale is made for, so that rows of zeros have one."""


def quantise_torch(x: Tensor, out8: Tensor, scale: Tensor, group: int, static: Tensor | None, bound: float) -> None:
    """The formula above, over `[tokens, inputs]`. `scale` is `[tokens]`, or `[tokens, ceil(inputs / group)]`."""
    limit = LIMITS[out8.dtype]
    tokens, inputs = x.shape
    if x.numel() == 0:
        return
    group = group or inputs
    groups = -(-inputs // group)
    wide = torch.nn.functional.pad(x.float(), (0, groups * group - inputs)).view(tokens, groups, group)
    if static is None:
        amax = wide.abs().amax(dim=2).clamp(min=TINY, max=bound or math.inf)
        scales = amax * (1.0 / limit)
    else:
        scales = static.float().view(1, 1).expand(tokens, groups)
    scale.copy_(scales.view(scale.shape))
    quotient = (wide * scales.reciprocal().unsqueeze(2)).clamp(-limit, limit)
    if out8.dtype == torch.int8:
        quotient = quotient.round()
    out8.copy_(quotient.view(tokens, -1)[:, :inputs])


def check_quantised(
    operator: str,
    tokens: int,
    inputs: int,
    out8: Tensor | None,
    scale: Tensor | None,
    group: int,
    static: Tensor | None,
) -> None:
    """Raises ValueError where the 8-bit results of an operator do not fit what it computes."""
    if out8 is None or scale is None:
        if out8 is not scale:
            raise ValueError(f"{operator}: the 8-bit values and their scales come together")
        return
    if out8.dtype not in LIMITS or scale.dtype != torch.float32:
        raise ValueError(f"{operator}: {out8.dtype} with scales of {scale.dtype} is no 8-bit form")
    if out8.is_cuda and out8.dtype == torch.float8_e4m3fn and not has_fp8_products(out8.device):
        raise ValueError(f"{operator}: this card has no float8: its activations stay in 16 bits")
    if group and (group & (group - 1) or group < 16):
        raise ValueError(f"{operator}: a group of {group} inputs is no power of two from 16 on")
    shape = (tokens, -(-inputs // group)) if group else (tokens,)
    if out8.shape != (tokens, inputs) or scale.shape != shape or (static is not None and static.numel() != 1):
        shapes = [tuple(tensor.shape) for tensor in (out8, scale, static) if tensor is not None]
        raise ValueError(f"{operator}: shapes of the 8-bit values, scales, static do not fit: {shapes}")
    if out8.stride(1) != 1:
        raise ValueError(f"{operator}: the last dimension of the 8-bit values must have stride 1")

"""MXFP4 (OCP Microscaling Formats, 2023): blocks of 32 four-bit numbers (e2m1) with a power of two for each block."""

import torch
from torch import Tensor

BLOCK = 32
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_SHIFT = 23
_LEAST_POWER = 1 << 22
"""The bits of 2 ** -127, which float32 holds without a leading one."""


def table(device: torch.device) -> Tensor:
    """Returns [16] float32, the value of each code."""
    return torch.tensor([*_VALUES, *(-value for value in _VALUES)], dtype=torch.float32, device=device)


def powers(exponents: Tensor) -> Tensor:
    """Returns 2 to the power of stored exponents, uint8, minus 127, as float32 of the same bits on every device."""
    bits = exponents.to(torch.int32) << _EXPONENT_SHIFT
    return torch.where(bits == 0, _LEAST_POWER, bits).view(torch.float32)


def dequantise(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantises `blocks` [..., groups, 16] uint8, in each byte the lower half first, with `scales` [..., groups]
    uint8, to [..., groups * 32]. This is exact in every floating type with an exponent as wide as bfloat16's.
    """
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    return (table(blocks.device)[halves.int()] * powers(scales)[..., None]).to(dtype).flatten(-2)

"""MXFP4 (OCP Microscaling Formats, 2023): blocks of 32 four-bit numbers (e2m1) with a power of two for each block."""

import torch
from torch import Tensor

BLOCK = 32
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


def dequantise(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """`blocks` [..., groups, 16] uint8, in each byte the lower half first, and `scales` [..., groups] uint8 to
    [..., groups * 32]. Exact in every floating type with an exponent as wide as bfloat16's.
    """
    table = torch.tensor([*_VALUES, *(-value for value in _VALUES)], dtype=torch.float32, device=blocks.device)
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    exponents = scales.to(torch.int32).sub_(_EXPONENT_BIAS)
    return torch.ldexp(table[halves.int()], exponents[..., None]).to(dtype).flatten(-2)

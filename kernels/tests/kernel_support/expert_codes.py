"""Quantised experts."""

import torch

from text_generation_kernels import ExpertMatrix, pack_codes, pack_scales

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of 4-bit floats whose sign bit is not set."""


def nvfp4_scales(rows: int, inputs: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of float8 as the kernels read them, of every size that there is, and the factors of the rows."""
    values = torch.rand(rows, -(-inputs // 16), device=device).mul_(20).exp2_().div_(2**11).clamp_(max=448)
    values = values.to(torch.float8_e4m3fn).float()
    factors = (torch.rand(rows, device=device) + 0.5) / 6 / values.amax(1).clamp_(min=2**-9)
    return pack_scales(values, inputs, 16)[0].to(torch.float8_e4m3fn), factors


def expert_codes(kind: str, experts: int, outputs: int, inputs: int, group_size: int, biased: bool) -> ExpertMatrix:
    """Random codes of every expert."""
    bits = 8 if kind in ("eight", "float8") else 4
    groups = -(-inputs // (group_size or inputs))
    codes = torch.randint(0, 2**bits, (experts * outputs, inputs), dtype=torch.uint8)
    layout, stored = (inputs, group_size), (torch.rand(len(codes), groups) + 0.5).bfloat16() / 64
    scales, size = pack_scales(stored, *layout)
    zeros = torch.randint(0, 16, stored.shape) if kind == "zeros" else None
    zeros = None if zeros is None else pack_scales(zeros, *layout)[0]
    packed = torch.randn(codes.shape).to(torch.float8_e4m3fn) if kind == "float8" else pack_codes(codes, bits)
    bias = torch.randn(experts, outputs).half() if biased else None
    table, factors = torch.randn(16) if kind == "table" else None, None
    if kind == "nvfp4":
        table = torch.tensor([*E2M1, *(-value for value in E2M1)])
        scales, factors = nvfp4_scales(len(codes), inputs)
    weight = packed.view(experts, outputs, -1)
    return ExpertMatrix(weight, bias, scales, zeros, table, size, e2m1=kind == "nvfp4", factors=factors)

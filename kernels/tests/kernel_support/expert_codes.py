"""Quantised experts."""

import torch

from text_generation_kernels import ExpertMatrix, pack_codes, pack_scales


def expert_codes(kind: str, experts: int, outputs: int, inputs: int, group_size: int, biased: bool) -> ExpertMatrix:
    """Random codes of every expert."""
    bits = 8 if kind in ("eight", "float8") else 4
    groups = -(-inputs // (group_size or inputs))
    codes = torch.randint(0, 2**bits, (experts * outputs, inputs), dtype=torch.uint8)
    scales, size = pack_scales((torch.rand(len(codes), groups) + 0.5).bfloat16() / 64, inputs, group_size)
    zeros = pack_scales(torch.randint(0, 16, (len(codes), groups)), inputs, group_size)[0] if kind == "zeros" else None
    packed = torch.randn(codes.shape).to(torch.float8_e4m3fn) if kind == "float8" else pack_codes(codes, bits)
    bias = torch.randn(experts, outputs).half() if biased else None
    table = torch.randn(16) if kind == "table" else None
    return ExpertMatrix(packed.view(experts, outputs, -1), bias, scales, zeros, table, size)

"""Bar of `weight_only_linear` (W4A16, W8A16): weight bandwidth, beside 16-bit GEMMs of the same matrices and a copy.

Matrices of Llama 3.1 8B and 70B on one GPU, with groups of 128 inputs, of 16 in NVFP4, or, in 8 bits, a scale for each
output. Matrices
rotate, so none is in the cache. Bytes are those of codes and scales.
"""

from collections.abc import Iterator

import torch

import text_generation_kernels as kernels

from .bar import Bar
from .matmul import LLAMA_8B, LLAMA_70B, Shapes, sixteen_bits
from .timing import Plan, Row, seconds_per_call

SHAPES: Shapes = {
    **{f"8B {name}": shape for name, shape in LLAMA_8B.items()},
    **{f"70B {name}": LLAMA_70B[name] for name in ("gate_up", "down")},
}
DRY_SHAPES: Shapes = {"dry": (48, 256)}
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 2048)
KINDS = {"symmetric": 4, "zeros": 4, "table": 4, "nvfp4": 4, "int8": 8, "float8": 8}
MOST = {"symmetric": 2048}
"""Tokens that are measured; of other kinds 64."""
GROUP = 128
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
    """One row for each matrix, kind of codes and number of tokens."""
    for name, (outputs, inputs) in (DRY_SHAPES if plan.dry_run else SHAPES).items():
        library: dict[int, float] = {}
        for kind in KINDS:
            weights = make_weights(plan, kind, outputs, inputs)
            num_bytes = weights[0].nbytes
            for tokens in (1, 70) if plan.dry_run else TOKENS:
                if tokens > MOST.get(kind, 64) and not plan.dry_run:
                    continue
                ours = seconds(plan, weights, tokens)
                library[tokens] = library.get(tokens) or sixteen_bits(plan, outputs, inputs, tokens)
                yield {
                    "matrix": name,
                    "outputs": outputs,
                    "inputs": inputs,
                    "codes": kind,
                    "tokens": tokens,
                    "microseconds": ours * 1e6,
                    "sixteen_bits_microseconds": library[tokens] * 1e6,
                    "gigabytes_per_second": num_bytes / ours / 1e9,
                    "fraction_of_copy": num_bytes / ours / ceiling,
                }


def make_weights(plan: Plan, kind: str, outputs: int, inputs: int) -> list[kernels.PackedMatrix]:
    """As many random matrices as fill the rotation, two at least."""
    bits = KINDS[kind]
    count = min(32, max(2, -(-plan.rotation_bytes * 8 // (outputs * inputs * bits))))
    return [_weight(plan, kind, bits, outputs, inputs) for _ in range(count)]


def _weight(plan: Plan, kind: str, bits: int, outputs: int, inputs: int) -> kernels.PackedMatrix:
    codes = torch.randint(0, 2**bits, (outputs, inputs), dtype=torch.uint8, device=plan.device)
    packed = kernels.pack_codes(codes, bits)
    if kind == "float8":
        packed = torch.randn(outputs, inputs, device=plan.device).to(torch.float8_e4m3fn)
    group = 16 if kind == "nvfp4" else GROUP if bits == 4 else 0
    groups = inputs // group if group else 1
    scale = (torch.rand(outputs, groups, device=plan.device) + 0.5).bfloat16() / 64
    scales, size = kernels.pack_scales(scale, inputs, group)
    points = torch.randint(0, 16, (outputs, groups), device=plan.device)
    zeros = kernels.pack_scales(points, inputs, group)[0] if kind == "zeros" else None
    table = torch.randn(16, device=plan.device) if kind == "table" else None
    table = torch.tensor([*_E2M1, *(-each for each in _E2M1)], device=plan.device) if kind == "nvfp4" else table
    factors = torch.full((outputs,), 1 / 64, device=plan.device) if kind == "nvfp4" else None
    scales = scales if factors is None else (64 * scales).to(torch.float8_e4m3fn)
    return kernels.PackedMatrix(packed, scales, zeros, table, size, factors)


def seconds(plan: Plan, weights: list[kernels.PackedMatrix], tokens: int) -> float:
    """Median time of one GEMM."""
    outputs, inputs = weights[0].scales.shape[1], weights[0].packed.shape[1]
    inputs *= 8 if weights[0].bits == 4 else 1
    x, out = plan.normal(tokens, inputs), plan.normal(tokens, outputs)

    def gemm(index: int) -> None:
        kernels.weight_only_linear(x, weights[index], None, None, out)

    return seconds_per_call(plan, gemm, len(weights))


BARS = {"weight_only_linear": Bar("GEMMs of 4- and 8-bit codes with 16-bit inputs", rows)}

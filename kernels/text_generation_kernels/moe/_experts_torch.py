"""Experts of a mixture in torch: the CPU path, and the reference of the kernels."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..norm.activations import ALONE, GATED
from .expert_matrix import ExpertMatrix

_DETERMINISTIC = 64
"""Rows of a GEMM in deterministic mode, whatever is in the step."""


def moe_experts_torch(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    up_scales: Tensor | None,
    up_zeros: Tensor | None,
    up_table: Tensor | None,
    up_group: int,
    up_w8a8: bool,
    up_e2m1: bool,
    down_weight: Tensor,
    down_bias: Tensor | None,
    down_scales: Tensor | None,
    down_zeros: Tensor | None,
    down_table: Tensor | None,
    down_group: int,
    down_w8a8: bool,
    down_e2m1: bool,
    activation: str,
    deterministic: bool,
    all_experts: int,
    out: Tensor,
    adds: bool = False,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Reads on the host which experts are hit."""
    gate_up = ExpertMatrix(up_weight, up_bias, up_scales, up_zeros, up_table, up_group, up_w8a8, up_e2m1)
    down = ExpertMatrix(down_weight, down_bias, down_scales, down_zeros, down_table, down_group, down_w8a8, down_e2m1)
    slots = ids.shape[1]

    def outputs_of(own: Tensor, expert: int) -> Tensor:
        result = gemm_of_expert(x[own // slots], gate_up, expert, deterministic)
        activated = activated_rows(result, activation, deterministic and not x.is_cuda).to(x.dtype)
        return gemm_of_expert(activated, down, expert, deterministic)

    sum_of_slots(x, ids, weights, down.experts, all_experts, outputs_of, out, adds)


def sum_of_slots(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: int,
    all_experts: int,
    outputs_of: Callable[[Tensor, int], Tensor],
    out: Tensor,
    adds: bool,
) -> None:
    """Adds up what `outputs_of` makes of the rows of each expert: int64 [rows] and the expert's number."""
    tokens, slots = ids.shape
    flat = ids.flatten()
    if all_experts > experts:
        # Rows of other ranks' experts come last, and stay zero.
        flat = flat.where((flat >= 0) & (flat < experts), experts)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=experts + 1).tolist()
    rows = x.new_zeros(tokens * slots, x.shape[1])
    for expert, own in enumerate(order.split(counts)[:experts]):
        if len(own):
            rows[own] = (outputs_of(own, expert) * weights.flatten()[own, None]).to(x.dtype)
    total = rows.view(tokens, slots, -1).sum(dim=1, dtype=torch.float32).to(out.dtype)
    out.copy_(out + total if adds else total)


def activated_rows(result: Tensor, activation: str, alone: bool) -> Tensor:
    """[T, 2 * n], without a gate [T, n], to float32 [T, n]. `alone`: each token by itself, as
    `layers.weights.linear.are_alone` says.
    """
    if alone and len(result) > 1:
        return torch.cat([activated_rows(each, activation, alone) for each in result.split(1)])
    if activation in ALONE:
        return ALONE[activation](result.float())
    gate, up = result.chunk(2, dim=1)
    return GATED[activation](gate.float(), up)


def gemm_of_expert(x: Tensor, matrix: ExpertMatrix, expert: int, deterministic: bool) -> Tensor:
    """The GEMM with one expert's matrix, in the type of its weights."""
    weight = matrix.of(expert, x.shape[1])
    bias = None if matrix.bias is None else matrix.bias[expert].to(weight.dtype)
    return gemm_in_blocks(x.to(weight.dtype), weight, bias, deterministic)


def gemm_in_blocks(x: Tensor, weight: Tensor, bias: Tensor | None, deterministic: bool) -> Tensor:
    """`x @ weight.T + bias`; with `deterministic` for a fixed number of tokens at a time, because libraries choose
    their algorithm by that number.
    """
    if not deterministic:
        return functional.linear(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, -len(x) % _DETERMINISTIC))
    chunks = [functional.linear(chunk, weight, bias) for chunk in padded.split(_DETERMINISTIC)]
    return torch.cat(chunks)[: len(x)]

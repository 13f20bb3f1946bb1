"""W8A8 GEMM of gate and up, with the gated activation as epilogue and the quantisation of its result.

    out = activation(gate) * up, where gate and up are the halves of (x8 * x_scale) @ (weight8 * weight_scale).T + bias

Layouts: `x8`, `x_scale`, `weight8`, `weight_scale`, `bias` as of `w8a8_linear`, gate rows of the weight first; `out`
`[tokens, outputs / 2]`. `quantised` and the activations: as of `act_and_mul`; the result is the same to the bit where
the sums are. ValueError for an unknown activation and for shapes that do not fit.

For 2 to 64 tokens with a scale for each token and each weight row the GEMM applies the activation and measures the
largest value of each tile. So `quantise_rows` need not see all of a token at once, and reads half as much as
`act_and_mul` does. Otherwise `w8a8_linear` and `act_and_mul` compute it.

A layer calls it once. Bytes floor: outputs * inputs. Lab: docs/lab/2026-11-w8a8-small-batches.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..norm.activations import GATED
from ..norm.quantise import NOT_QUANTISED, Quantised
from ..norm.quantise_rows import quantise_rows_triton
from ..runtime.register import register
from .w8a8_ladder import W8A8, W8A8Problem
from .w8a8_linear import w8a8_linear_torch, w8a8_linear_triton


def w8a8_gated_triton(
    x8: Tensor,
    x_scale: Tensor,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and for shapes that do not fit."""
    tokens, outputs = len(x8), len(weight8)
    if activation not in GATED:
        raise ValueError(f"w8a8_gated: unknown activation {activation!r}, use one of {', '.join(GATED)}")
    choice = W8A8.find(W8A8Problem.of(x8, x_scale, weight8, weight_scale, gated=True))
    if quantised.is_wanted and choice is not None:
        largest = x_scale.new_empty(tokens, -(-outputs // choice.settings["BLOCK_N"]))
        operands = x8, x_scale, weight8, weight_scale, bias
        choice.kernel.launch(*operands, out, choice.settings, activation, largest)
        quantise_rows_triton(out, quantised, largest)
        return
    gate_up = out.new_empty(tokens, outputs)
    w8a8_linear_triton(x8, x_scale, weight8, weight_scale, bias, gate_up)
    act_and_mul_triton(gate_up, activation, out, quantised)


def w8a8_gated_torch(
    x8: Tensor,
    x_scale: Tensor,
    weight8: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    gemm = torch.empty(len(x8), len(weight8), dtype=out.dtype, device=out.device)
    w8a8_linear_torch(x8, x_scale, weight8, weight_scale, bias, gemm)
    act_and_mul_torch(gemm, activation, out, quantised)


w8a8_gated = register(w8a8_gated_torch, mutates=("out", "quantised_codes", "quantised_scale"), triton=w8a8_gated_triton)

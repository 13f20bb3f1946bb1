"""A mixture of experts: its router's top-k (`moe_route.py`), then its experts (`moe_experts.py`).

    ids, weights = route(logits + bias),  out = sum over slots of weights * experts[ids](x)

Layouts, rounding and errors are those of the two operators. `logits` `[tokens, experts]`, with one more column where
shared experts have a gate.

A layer calls it once. For one token with 16-bit weights whose experts are those of the largest logits the router is
fused into the GEMVs (`experts_gemv.py`, and for small experts on Hopper cards `token_experts_hopper.py`).
"""

import torch
from torch import Tensor

from ..norm.activations import is_gated
from ..runtime.register import triton_enabled
from .expert_matrix import ExpertMatrix
from .experts_gemv import MOST_EXPERTS, Routing, expert_gemv, expert_gemv_sum
from .moe_experts import check_experts, inner_of, moe_experts
from .moe_route import RouteOptions, moe_route
from .token_experts_hopper import token_experts, token_settings


def mixture(
    x: Tensor,
    logits: Tensor,
    bias: Tensor | None,
    options: RouteOptions,
    gate_up: ExpertMatrix,
    down: ExpertMatrix,
    activation: str,
    deterministic: bool,
    out: Tensor,
    all_experts: int | None = None,
    adds: bool = False,
) -> None:
    """Writes `out`, or adds to it. `all_experts`: how many the mixture has, where other ranks have some of them. Raises
    ValueError for shapes and layouts that do not fit.
    """
    shape = (len(x), options.slots)
    ids, weights = x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.float32)
    if (
        x.is_cuda
        and triton_enabled()
        and not deterministic
        and not torch.compiler.is_compiling()
        and fuses_routing(x, logits, bias, options, down)
    ):
        check_experts(x, ids, weights, gate_up, down, activation, out)
        routing = Routing(logits, options, weights)
        mixture_of_one_token(x, routing, ids, gate_up, down, activation, out, all_experts or down.experts, adds)
        return
    moe_route(logits, bias, options, ids, weights)
    moe_experts(x, ids, weights, gate_up, down, activation, deterministic, out, all_experts, adds)


def fuses_routing(x: Tensor, logits: Tensor, bias: Tensor | None, options: RouteOptions, down: ExpertMatrix) -> bool:
    """Whether GEMVs fuse the router: one token, unquantised weights, the top-k of 16-bit logits."""
    is_plain = options.score == "softmax" and options.groups == 1 and bias is None
    is_gated = options.shared > 0 and options.shared_gate
    fits = len(x) == 1 and down.scales is None and logits.element_size() == 2 and logits.shape[1] <= MOST_EXPERTS
    return is_plain and not is_gated and fits and logits.stride(1) == 1


def mixture_of_one_token(
    x: Tensor,
    routing: Routing,
    ids: Tensor,
    gate_up: ExpertMatrix,
    down: ExpertMatrix,
    activation: str,
    out: Tensor,
    all_experts: int,
    adds: bool,
) -> None:
    """Triton implementation where `fuses_routing` says yes."""
    activated = x.new_empty(ids.shape[1], inner_of(gate_up, activation))
    config = token_settings(x, routing, gate_up, down, all_experts) if is_gated(activation) else None
    if config is not None:
        token_experts(x, routing, gate_up.weight, down.weight, activation, activated, out, adds, config)
        return
    held = down.experts if down.experts < all_experts else None
    expert_gemv(x, gate_up.weight, gate_up.bias, activated, activation, ids, held, routing)
    expert_gemv_sum(activated, down.weight, down.bias, ids, routing.shares, held, out, adds)

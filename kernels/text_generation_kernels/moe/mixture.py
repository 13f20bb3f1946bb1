"""A mixture of experts: its router's top-k (`moe_route.py`), then its experts (`moe_experts.py`).

    ids, weights = route(logits + bias),  out = sum over slots of weights * experts[ids](x)

Layouts, rounding and errors are those of the two operators. `logits` `[tokens, experts]`, with one more column where
shared experts have a gate.

A layer calls it once. For one token with 16-bit weights whose experts are those of the largest logits the router is
fused into the GEMVs; `mixture_ladder.py` chooses them.
"""

import torch
from torch import Tensor

from ..matmul.ladder import Choice
from ..runtime.register import triton_enabled
from .expert_matrix import ExpertMatrix
from .experts_gemv import Routing
from .mixture_ladder import MIXTURE, MixtureProblem
from .moe_experts import check_experts, inner_of, moe_experts
from .moe_route import RouteOptions, moe_route


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
    all_experts = all_experts or down.experts
    on_device = x.is_cuda and triton_enabled() and not torch.compiler.is_compiling()
    if len(x) == 1 and on_device and not deterministic:
        problem = MixtureProblem.of(x, logits, bias, options, gate_up, down, activation, all_experts)
        if (choice := MIXTURE.find(problem)) is not None:
            check_experts(x, ids, weights, gate_up, down, activation, out)
            routing = Routing(logits, options, weights)
            launch_routed(choice, x, routing, ids, gate_up, down, activation, out, all_experts, adds)
            return
    moe_route(logits, bias, options, ids, weights)
    moe_experts(x, ids, weights, gate_up, down, activation, deterministic, out, all_experts, adds)


def launch_routed(
    choice: Choice[MixtureProblem],
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
    """Launches the kernels of one token that fuse its router."""
    activated = x.new_empty(ids.shape[1], inner_of(gate_up, activation))
    held = down.experts if down.experts < all_experts else None
    matrices = gate_up, down, activation
    choice.kernel.launch(x, routing, ids, *matrices, activated, out, held, adds, choice.settings)

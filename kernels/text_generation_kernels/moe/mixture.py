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
from .expert_mlps import ExpertMlps
from .experts_gemv import FusedRouter
from .mixture_ladder import MIXTURE, MixtureProblem
from .moe_experts import check_experts, moe_experts
from .moe_route import RouteOptions, moe_route
from .routing import Routing


def mixture(
    x: Tensor,
    logits: Tensor,
    bias: Tensor | None,
    options: RouteOptions,
    experts: ExpertMlps,
    deterministic: bool,
    out: Tensor,
    adds: bool = False,
) -> None:
    """Writes `out`, or adds to it. Raises ValueError for shapes and layouts that do not fit."""
    routing = Routing.empty(len(x), options.slots, x.device)
    on_device = x.is_cuda and triton_enabled() and not torch.compiler.is_compiling()
    if len(x) == 1 and on_device and not deterministic:
        choice = MIXTURE.find(MixtureProblem.of(x, logits, bias, options, experts))
        if choice is not None:
            check_experts(x, routing, experts, out)
            launch_routed(choice, x, FusedRouter(logits, options, routing), experts, out, adds)
            return
    moe_route(logits, bias, options, routing)
    moe_experts(x, routing, experts, deterministic, out, adds)


def launch_routed(
    choice: Choice[MixtureProblem], x: Tensor, router: FusedRouter, experts: ExpertMlps, out: Tensor, adds: bool
) -> None:
    """Launches the kernels of one token that fuse its router."""
    activated = x.new_empty(router.options.slots, experts.inner)
    choice.kernel.launch(x, router, experts, activated, out, adds, choice.settings)

"""Kernels of a mixture of experts for one token that fuse its router, in order of preference."""

# pyright: basic, reportArgumentType=false
from typing import NamedTuple

from torch import Tensor

from ..matmul.ladder import Fusion, Ladder, MatmulKernel, Settings
from ..norm.activations import is_gated
from ..runtime.device import Card, card_of
from .expert_mlps import ExpertMlps
from .expert_rows import ExpertRows
from .experts_gemv import MOST_EXPERTS, FusedRouter, expert_gemv, expert_gemv_sum
from .moe_route import RouteOptions
from .token_experts_hopper import token_blocks, token_experts


class MixtureProblem(NamedTuple):
    """What the choice of a kernel depends on."""

    card: Card
    tokens: int
    hidden: int
    up_outputs: int
    options: RouteOptions
    columns: int
    """Of the logits."""
    is_gated: bool
    """Whether the experts' activation is."""
    is_plain: bool
    """Whether weights are not quantised, logits have 16 bits with unit stride, and nothing is added to them."""
    is_16_bit: bool
    """Whether activations have 16 bits."""
    has_biases: bool
    is_whole: bool
    """Whether this rank has all experts."""
    is_aligned: bool
    """Whether activations and weights begin at multiples of 16 bytes."""

    @classmethod
    def of(
        cls,
        x: Tensor,
        logits: Tensor,
        bias: Tensor | None,
        options: RouteOptions,
        experts: ExpertMlps,
    ) -> "MixtureProblem":
        """The problem of these tensors."""
        gate_up, down = experts.gate_up, experts.down
        return cls(
            card=card_of(x.device),
            tokens=len(x),
            hidden=down.outputs,
            up_outputs=gate_up.outputs,
            options=options,
            columns=logits.shape[1],
            is_gated=is_gated(experts.activation),
            is_plain=down.scales is None and logits.element_size() == 2 and logits.stride(1) == 1 and bias is None,
            is_16_bit=x.element_size() == 2,
            has_biases=gate_up.bias is not None or down.bias is not None,
            is_whole=down.experts == experts.total,
            is_aligned=all(each.data_ptr() % 16 == 0 for each in (x, gate_up.weight, down.weight)),
        )


def _unroutable(problem: MixtureProblem) -> str | None:
    """Why GEMVs do not fuse this router."""
    options = problem.options
    if problem.tokens > 1:
        return "it computes a single token"
    if options.score != "softmax" or options.groups > 1 or (options.shared and options.shared_gate):
        return "it takes the top-k of a softmax, without groups or a gate of shared experts"
    if not problem.is_plain or problem.columns > MOST_EXPERTS:
        return f"it takes unquantised weights, and at most {MOST_EXPERTS} logits of 16 bits, to which nothing is added"
    return None


def _hopper_settings(problem: MixtureProblem) -> Settings | str:
    if reason := _unroutable(problem):
        return reason
    if not problem.card.is_hopper:
        return "it is for compute capability 9.0"
    if not (problem.is_gated and problem.is_16_bit and problem.is_whole and problem.is_aligned) or problem.has_biases:
        return "it takes all experts of a mixture, in 16 bits, gated and without biases"
    if problem.options.norm == 2 or problem.options.shared:
        return "it knows no square norm and no shared experts"
    blocks = token_blocks(problem.hidden, problem.up_outputs // 2, problem.options.top_k, problem.card.num_sms)
    return "no tiles fit these sizes: it is for small experts" if blocks is None else blocks


def _gemv_settings(problem: MixtureProblem) -> Settings | str:
    return _unroutable(problem) or {}


def _gemv(
    x: Tensor,
    router: FusedRouter,
    experts: ExpertMlps,
    activated: Tensor,
    out: Tensor,
    adds: bool,
    _settings: Settings,
) -> None:
    (ids, weights), held = (router.routing.ids, router.routing.weights), experts.held
    up_rows = ExpertRows(ids, None, None, experts.activation, 1, held)
    expert_gemv(x, experts.gate_up, up_rows, activated, router)
    expert_gemv_sum(activated, experts.down, ExpertRows(ids, None, weights, None, 1, held, adds), out)


_FUSES = frozenset[Fusion]({"router", "activation", "sum over experts", "residual"})
MIXTURE = Ladder(
    MatmulKernel(
        "token_experts_hopper",
        _hopper_settings,
        token_experts,
        "small gated experts of 16 bits, all on this rank, on compute capability 9.0",
        _FUSES,
        ("token_experts",),
    ),
    MatmulKernel(
        "expert_gemv with its router",
        _gemv_settings,
        _gemv,
        "unquantised experts, and the top-k of a softmax",
        _FUSES,
        ("expert_gemv", "expert_gemv_sum"),
    ),
)
"""None of them takes more than one token, quantised experts and other routers than the top-k of a softmax."""

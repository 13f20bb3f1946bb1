"""Mixture of experts (MoE) as the feed-forward network of a layer."""

import copy

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import MoeSpec
from ..weights import (
    Activations,
    ActivationScheme,
    Adapting,
    CurrentAdapters,
    ExpertTables,
    MoeWeights,
    shared_experts,
    wrapped,
)
from .expert_load import LayerLoad
from .feed_forward import DenseFeedForward, FeedForward
from .fusion import OutputFusion, SublayerOutput
from .routed_by_token import route_by_token
from .state import InferState
from .token_ids import token_ids


class MoeFeedForward(FeedForward):
    """Router, top-k and experts. Every rank routes by itself, from equal logits, and computes its shard of each expert,
    or the whole experts that it holds.
    """

    def __init__(self, spec: MoeSpec, weights: MoeWeights, load: LayerLoad | None = None) -> None:
        """`load` counts how many rows each rank computes; None: nothing does, as in most layers."""
        self._weights = weights
        self._wide = spec.route.wide
        self._gated = spec.shared_gate
        self._weighs_inputs = spec.weighs_inputs
        self._adds_input = weights.adds_input
        self._all_experts = spec.experts
        self._shared = None
        if weights.shared is not None and spec.shared is not None:
            self._shared = DenseFeedForward(spec.shared, weights.shared)
        self._options = route_options(spec, weights)
        self._experts = expert_mlps(spec, weights)
        self._load = load
        self._adapters: tuple[CurrentAdapters, ExpertTables] | None = None

    @property
    def wants(self) -> ActivationScheme | None:
        """See `FeedForward`: router and experts read 16-bit activations."""
        return None

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `FeedForward`."""
        return self._forward(x, state, None)

    def forward_fused(self, x: Activations, state: InferState, fusion: OutputFusion) -> SublayerOutput:
        """See `FeedForward`."""
        return self._forward(x, state, fusion.residual)

    def forward_routed(self, x: Activations, routed: Activations, state: InferState) -> Tensor:
        """Does the same where the router reads `routed` [N, hidden]."""
        return self._forward(x, state, None, routed)

    def adapted(self, adapting: Adapting) -> "MoeFeedForward":
        """See `FeedForward`. A router that reads 32 bits has no adapters."""
        made = copy.copy(self)
        made._weights = wrapped(self._weights, adapting, but=("router",) if self._wide else ())
        made._shared = None if self._shared is None else self._shared.adapted(adapting)
        tables = None if self._weights.stored is None else adapting.experts(self._weights.stored)
        made._adapters = None if tables is None else (adapting.current, tables)
        return made

    def _forward(
        self, x: Activations, state: InferState, residual: Tensor | None, routed: Activations | None = None
    ) -> Tensor:
        """Adds the result to `residual` [1, hidden] and returns that, where one is given and the layer has neither
        separate shared experts nor a latent state.
        """
        weights, block, routed = self._weights, state.linear_block, routed or x
        logits = weights.router.apply(Activations(routed.x.float()) if self._wide else routed, block)
        read = x.x if weights.latent_in is None else weights.latent_in.apply(x, block)
        if self._weighs_inputs:
            read = read * kernels.sigmoid(logits.amax(-1, keepdim=True).float()).to(read.dtype)
        adds = residual is not None and self._shared is None and weights.latent_out is None
        out = residual if adds and residual is not None else torch.empty_like(read)
        self._mix(read, logits, state, out, out is residual)
        if weights.latent_out is not None:
            out = weights.latent_out.apply(Activations(out), block)
        if self._shared is not None:
            shared = self._shared.forward(x, state)
            if self._gated:
                shared *= kernels.sigmoid(logits[:, -1:].float())
            out += shared
        return out

    def _mix(self, x: Tensor, logits: Tensor, state: InferState, out: Tensor, adds: bool) -> None:
        """Writes what the experts make of `x` [N, hidden] to `out`, or adds it."""
        router, deterministic = (logits, self._weights.correction, self._options), state.deterministic
        table = self._weights.by_token
        if self._adapters is None and not self._adds_input and self._load is None and table is None:
            kernels.mixture(x, *router, self._experts, deterministic, out, adds)
            return
        routing = kernels.Routing.empty(len(x), self._options.slots, x.device)
        if table is None:
            kernels.moe_route(*router, routing)
        else:
            route_by_token(logits, table, token_ids(state), self._options, routing)
        if self._load is not None:
            self._load.count(routing.ids, state)
        if self._adapters is None:
            kernels.moe_experts(x, routing, self._experts, deterministic, out, adds)
        else:
            current, tables = self._adapters
            own = current.step.numbers, tables.up, tables.down
            kernels.adapted_experts(x, routing, self._experts, deterministic, out, *own, adds)
        if self._adds_input:
            # Experts that change nothing have the last numbers; the first rank counts from 0.
            share = routing.weights.masked_fill(routing.ids < self._all_experts, 0.0).sum(1, keepdim=True)
            out.add_((x.float() * share).to(out.dtype))


def route_options(spec: MoeSpec, weights: MoeWeights) -> kernels.RouteOptions:
    """Returns what the router of these weights does. A shared expert that is stored among the experts is routed to."""
    route, is_apart = spec.route, weights.shared is not None and spec.shared is not None
    return kernels.RouteOptions(
        top_k=route.top_k,
        score=route.score,
        norm=route.norm,
        scale=route.scale,
        groups=route.groups,
        top_groups=route.top_groups,
        group_score=route.group_score,
        jitter=route.jitter,
        shared=0 if is_apart else shared_experts(spec),
        shared_gate=spec.shared_gate,
        first=weights.experts.start,
    )


def expert_mlps(spec: MoeSpec, weights: MoeWeights) -> kernels.ExpertMlps:
    """Returns the experts of these weights."""
    activation = spec.activation if spec.gated else kernels.alone(spec.activation)
    all_experts = spec.experts + spec.identity + route_options(spec, weights).shared
    return kernels.ExpertMlps(weights.gate_up, weights.down, activation, all_experts)

"""What a mixture of experts holds: the inner dimension of every expert is shared among the ranks, the router is whole.

A network that every token passes besides becomes further experts of the same inner size, the last one filled up with
zeros, which add nothing: so one operator computes all of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.spec import MoeSpec
from ...kernels import ExpertMatrix
from .checkpoint import Checkpoint
from .experts import ExpertPart, load_experts
from .linear import Dense, Linear


@dataclass(frozen=True)
class MoeWeights:
    """Of one layer: the routed experts, then the shared ones; `inner` is this rank's part."""

    router: Linear
    """Logits of the routed experts, then of the shared ones' gate where there is one. float32 where the spec says."""
    correction: Tensor | None
    """[experts] float32"""
    gate_up: ExpertMatrix
    """From hidden to 2 * inner, gate rows first."""
    down: ExpertMatrix
    """From inner to hidden; its bias is on the first rank alone: outputs of the ranks are summed."""


def load_moe(checkpoint: Checkpoint, layer: int, spec: MoeSpec) -> MoeWeights:
    """Reads this rank's part. Raises ModelFilesError, or ConfigurationError where there is none for each rank."""
    part = ExpertPart.of(checkpoint, layer, spec)
    gate_up, down = load_experts(part)
    gate_up_bias, down_bias = _biases(part)
    return MoeWeights(
        _router(part), _correction(part), gate_up._replace(bias=gate_up_bias), down._replace(bias=down_bias)
    )


def _router(part: ExpertPart) -> Linear:
    source, names, spec = part.checkpoint.source, part.checkpoint.names, part.spec
    dtype = torch.float32 if spec.route.wide else None
    weight = source.read(f"{part.name(names.router)}.weight", (spec.experts, part.hidden), dtype=dtype)
    if spec.shared_gate:
        gate = source.read(f"{part.name(names.shared_weight)}.weight", (1, part.hidden), dtype=dtype)
        weight = torch.cat((weight, gate))
    bias = source.read(f"{part.name(names.router)}.bias", (spec.experts,), dtype=dtype) if spec.route.bias else None
    return Dense(weight, bias)


def _correction(part: ExpertPart) -> Tensor | None:
    if not part.spec.route.correction:
        return None
    name = part.name(part.checkpoint.names.router_correction)
    # In a narrower type, experts whose numbers differ little would be one to the choice.
    return part.checkpoint.source.read(name, (part.spec.experts,), dtype=torch.float32)


def _biases(part: ExpertPart) -> tuple[Tensor | None, Tensor | None]:
    """Of the first product and of the second."""
    if not part.spec.bias:
        return None, None
    source, spec = part.checkpoint.source, part.spec
    first, last = part.checkpoint.names.expert_gate, part.checkpoint.names.expert_down
    stored = source.read(f"{part.name(first)}_bias", (spec.experts, 2 * spec.inner))
    halves = [stored[:, half::2][:, part.start : part.stop] for half in (0, 1)]
    down_bias = source.read(f"{part.name(last)}_bias", (spec.experts, part.hidden))
    return torch.cat(halves, dim=1), down_bias if part.checkpoint.is_first else None

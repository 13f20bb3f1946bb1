"""Mixtures of experts: the class routes tokens, and our operator computes the experts."""

# Switches of the library have names with an underscore.
# pyright: reportPrivateUsage=false

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.integrations.moe import _default_apply_gate

import text_generation_kernels as kernels

from ...config.fallback import unsupported
from ...config.families.common import ACTIVATIONS
from ...distributed import TensorParallelGroup
from .interfaces import ExpertsLayer


def check_experts(model: str, name: str, module: nn.Module) -> None:
    """Raises UnsupportedModel for networks that the operator does not compute."""
    expected = {"has_gate": True, "is_transposed": False, "is_concatenated": True, "has_post_expert_norm": False}
    for key, value in expected.items():
        if getattr(module, key, value) != value:
            raise unsupported(model, f"experts of {name} have `{key}` {not value}, which our operator does not know")
    gate = getattr(type(module), "_apply_gate", None)
    if gate is not _default_apply_gate or _activation(module) is None:
        raise unsupported(model, f"experts of {name} have an activation that our operator does not know")


def _activation(module: nn.Module) -> str | None:
    """Returns the operator's name for the activation of a module."""
    known = {type(ACT2FN[name]): ours for name, ours in ACTIVATIONS.items() if name in ACT2FN}
    return known.get(type(getattr(module, "act_fn", None)))


class ServedExperts(ExpertsLayer):
    """The experts of one layer. Each rank has a shard of the inner dimension of every expert, or all of it."""

    def __init__(
        self,
        module: nn.Module,
        first: kernels.ExpertMatrix,
        second: kernels.ExpertMatrix,
        group: TensorParallelGroup | None,
    ) -> None:
        """`first`: gate rows, then up rows; `group`: who has the other parts."""
        self._experts = kernels.ExpertMlps(first, second, _activation(module) or "")
        self._group = group

    def compute(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertsLayer`."""
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(flat)
        ids, weights = (each.reshape(len(flat), -1) for each in (ids, weights))
        routing = kernels.Routing(ids.int().contiguous(), weights.float().contiguous())
        kernels.moe_experts(flat, routing, self._experts, False, out)
        if self._group is not None:
            self._group.all_reduce(out)
        return out.view(x.shape)

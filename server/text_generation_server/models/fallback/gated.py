"""Gated feed-forward networks of a class, which are recognised by what they compute."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import text_generation_kernels as kernels

from ...config.families.common import ACTIVATIONS
from ...config.spec import Activation
from ...layers.weights import Activations, Linear
from .linear import ServedLinear
from .trial import HIDDEN, INNER, outcome, random_matrices


@dataclass(frozen=True)
class GatedNetwork:
    """A module that computes `down(activation(gate(x)) * up(x))`, and the paths of its matrices."""

    path: str
    gate: str
    up: str
    down: str
    activation: Activation


class ServedGated(nn.Module):
    """Gate and up as one GEMM, with the activation behind it."""

    def __init__(self, gate_up: Linear, activation: Activation, down: ServedLinear) -> None:
        super().__init__()
        self._gate_up = gate_up
        self._activation: Activation = activation
        self._down = down

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        tokens = Activations(x.reshape(-1, x.shape[-1]))
        return self._down.compute(self._gate_up.gated(tokens, self._activation, self._down.wants)).view(x.shape)


def recognise_gated(path: str, module: nn.Module) -> GatedNetwork | None:
    """Finds out by trial whether `module`, at `path` of a model, is a gated network. Returns its matrices, or None."""
    names = [name for name, child in module.named_children() if type(child) is nn.Linear]
    if len(names) != 3 or any(next(child.children(), None) is not None for child in module.children()):
        return None
    for down in names:
        first, second = (name for name in names if name != down)
        for gate, up in ((first, second), (second, first)):
            if (activation := _tried(module, gate, up, down)) is not None:
                return GatedNetwork(path, f"{path}.{gate}", f"{path}.{up}", f"{path}.{down}", activation)
    return None


def _tried(module: nn.Module, gate: str, up: str, down: str) -> Activation | None:
    matrices = random_matrices({gate: (INNER, HIDDEN), up: (INNER, HIDDEN), down: (HIDDEN, INNER)})
    if (tried := outcome(module, matrices)) is None:
        return None
    x, expected = tried
    gate_up, activated = x @ torch.cat((matrices[gate], matrices[up])).t(), torch.empty(len(x), INNER)
    for activation in dict.fromkeys(ACTIVATIONS.values()):
        kernels.act_and_mul(gate_up, activation, activated)
        if torch.allclose(activated @ matrices[down].t(), expected, rtol=1e-4, atol=1e-4):
            return activation
    return None

"""Gated activation of the MLP (Shazeer, 2020).

    out = activation(gate_up[:, :n]) * gate_up[:, n:]

Activations: "silu", "gelu" (with the error function), "gelu_tanh".
Layouts: `gate_up` `[tokens, 2 * n]`, gate first; `out` `[tokens, n]`; unit stride in the last dimension.
Computed in float32, rounded once.

Called once a layer, between the two products of the MLP.
Bytes floor: 3 * tokens * n * element size (read gate and up, write out).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ._register import register

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def act_and_mul_torch(gate_up: Tensor, activation: str, out: Tensor) -> None:
    """Torch implementation on every device."""
    n = out.shape[-1]
    gate, up = gate_up[:, :n], gate_up[:, n:]
    if out.dtype == torch.float32:
        torch.mul(_ACTIVATIONS[activation](gate), up, out=out)
    else:
        out.copy_(_ACTIVATIONS[activation](gate.float()) * up)


act_and_mul = register(act_and_mul_torch, mutates=("out",))
"""act_and_mul(gate_up, activation, out)"""

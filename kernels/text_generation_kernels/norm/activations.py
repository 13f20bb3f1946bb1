"""Activations of MLPs, ungated and gated, in torch and for Triton kernels: one table for all operators that have them.

Activations: "silu" (also called swish), "gelu" (with the error function, Hendrycks and Gimpel, 2016), "gelu_tanh" (its
approximation, also called gelu_new or gelu_pytorch_tanh), "relu", "relu2" (its square, So et al., 2021).
Gated: activation(gate) * up for each of them (Shazeer, 2020), and "clamped_swiglu" of gpt-oss:

    gate = min(gate, 7),  up = clamp(up, -7, 7),  (up + 1) * gate * sigmoid(1.702 * gate)

Bounded, of Step 3.5, for each of `BOUNDS` ("silu_within_7"): min(silu(gate), bound) * clamp(up, -bound, bound). Of
GLM 5.3, for each of `INPUT_BOUNDS` ("silu_below_10"): silu(min(gate, bound)) * clamp(up, -bound, bound).
Ungated activations of experts have names that end in "_alone".
"""

# pyright: basic
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.triton import tl, triton

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def sigmoid(x: Tensor) -> Tensor:
    """`torch.sigmoid`, but the bits of an element do not depend on its place: on a CPU torch rounds the end of a
    tensor, and of each thread's range, otherwise than the rest.
    """
    return x.sigmoid() if x.is_cuda else x.neg().exp_().add_(1.0).reciprocal_()


def sqrt_softplus(x: Tensor) -> Tensor:
    """sqrt(log(1 + exp(x))) of float32, likewise; for scores of routers (DeepSeek V4)."""
    return (x.clamp(min=0.0) + x.abs().neg_().exp_().log1p_()).sqrt_()


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.float().clamp(-7.0, 7.0)
    return (up + 1.0) * gate * torch.sigmoid(1.702 * gate)


def _gated_by(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda gate, up: activation(gate) * up


def _bounded_by(bound: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda gate, up: functional.silu(gate).clamp(max=bound) * up.clamp(-bound, bound)


def _of_bounded(bound: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda gate, up: functional.silu(gate.clamp(max=bound)) * up.clamp(-bound, bound)


BOUNDS, INPUT_BOUNDS = (7, 16), (10,)
"""Of bounded activations, and of activations of bounded inputs."""
_WITHIN, _BELOW = "silu_within_", "silu_below_"
GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: _gated_by(activation) for name, activation in ACTIVATIONS.items()},
    "clamped_swiglu": _clamped_swiglu,
    **{f"{_WITHIN}{bound}": _bounded_by(bound) for bound in BOUNDS},
    **{f"{_BELOW}{bound}": _of_bounded(bound) for bound in INPUT_BOUNDS},
}
_ALONE = "_alone"


def alone(name: str) -> str:
    """The name in `ALONE` of a key of `ACTIVATIONS`."""
    return f"{name}{_ALONE}"


ALONE: dict[str, Callable[[Tensor], Tensor]] = {alone(name): each for name, each in ACTIVATIONS.items()}


@triton.constexpr_function
def is_gated(name):
    """Whether this is a key of `GATED`; else it is one of `ALONE`."""
    return not name.endswith("_alone")


@triton.constexpr_function
def plain_name(name):
    """The key in `ACTIVATIONS` of one of `ALONE`."""
    return name.removesuffix("_alone")


@triton.constexpr_function
def bound_of(name):
    """The bound of a bounded activation; 0 for others."""
    return float(name.removeprefix("silu_within_")) if name.startswith("silu_within_") else 0.0


@triton.constexpr_function
def input_bound_of(name):
    """The bound of the inputs of an activation; 0 for others."""
    return float(name.removeprefix("silu_below_")) if name.startswith("silu_below_") else 0.0


@triton.jit
def activation(
    x,  # float32
    ACTIVATION: tl.constexpr,  # key of ACTIVATIONS
):
    """The activation, in float32.

    With tanh(y) = 2 * sigmoid(2 * y) - 1, x / 2 * (1 + tanh(y)) is x * sigmoid(2 * y).
    """
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1 / sqrt(2)
    elif ACTIVATION == "relu":
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "relu2":
        positive = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return positive * positive
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        return x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))  # 2 * sqrt(2 / pi)


@triton.jit
def gated_activation(
    gate,  # float32
    up,  # float32
    ACTIVATION: tl.constexpr,  # key of GATED
):
    """The gated activation, in float32."""
    if ACTIVATION == "clamped_swiglu":
        gate = tl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -7.0, 7.0, propagate_nan=tl.PropagateNan.ALL)
        return (up + 1.0) * gate * tl.sigmoid(1.702 * gate)
    elif bound_of(ACTIVATION) > 0:
        BOUND: tl.constexpr = bound_of(ACTIVATION)
        gate = tl.minimum(activation(gate, "silu"), BOUND, propagate_nan=tl.PropagateNan.ALL)
        return gate * tl.clamp(up, -BOUND, BOUND, propagate_nan=tl.PropagateNan.ALL)
    elif input_bound_of(ACTIVATION) > 0:
        INPUT_BOUND: tl.constexpr = input_bound_of(ACTIVATION)
        gate = activation(tl.minimum(gate, INPUT_BOUND, propagate_nan=tl.PropagateNan.ALL), "silu")
        return gate * tl.clamp(up, -INPUT_BOUND, INPUT_BOUND, propagate_nan=tl.PropagateNan.ALL)
    else:
        return activation(gate, ACTIVATION) * up

"""Gated activation of the MLP (Shazeer, 2020).

    out = activation(gate_up[:, :n]) * gate_up[:, n:]

Activations: "silu", "gelu" (with the error function), "gelu_tanh".
Layouts: `gate_up` `[tokens, 2 * n]`, gate first; `out` `[tokens, n]`; unit stride in the last dimension, any stride
between tokens. One floating type for both. Computed in float32, rounded once.

Called once a layer, between the two products of the MLP.
Bytes floor: 3 * tokens * n * element size (read gate and up, write out).
Measured on an H200 in bfloat16 at 4096 tokens and n 14336: 98 % of copy bandwidth, 85 % for "gelu", whose error
function is arithmetic; 1.1 us at one token (benchmark/results/act_and_mul.json).
"""

# pyright: basic, reportArgumentType=false
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ._config import nearest
from ._launch import Launcher, let_next_start, wait_for_previous
from ._register import register
from ._triton import tl, triton

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@triton.jit
def activate(
    x,  # float32
    ACTIVATION: tl.constexpr,  # key of _ACTIVATIONS
):
    """The activation, in float32.

    With tanh(y) = 2 * sigmoid(2 * y) - 1, x / 2 * (1 + tanh(y)) is x * sigmoid(2 * y).
    """
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1 / sqrt(2)
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        return x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))  # 2 * sqrt(2 / pi)


@triton.jit
def act_and_mul_kernel(
    gate_up_ptr,  # [tokens, 2 * n]
    out_ptr,  # [tokens, n]
    n,
    stride_gate_up_token,
    stride_out_token,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two
    PDL: tl.constexpr,
):
    """One program computes BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < n
    let_next_start(PDL)
    wait_for_previous(PDL)
    gate_row = gate_up_ptr + token * stride_gate_up_token + columns
    gate = tl.load(gate_row, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_row + n, mask=valid, other=0.0).to(tl.float32)
    out = (activate(gate, ACTIVATION) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * stride_out_token + columns, out, mask=valid)


_launch = Launcher(act_and_mul_kernel)


def act_and_mul_triton(gate_up: Tensor, activation: str, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and layouts that the kernel does not read."""
    tokens, n = out.shape
    if activation not in _ACTIVATIONS:
        raise ValueError(f"act_and_mul: unknown activation {activation!r}, use one of {', '.join(_ACTIVATIONS)}")
    if gate_up.shape != (tokens, 2 * n):
        shapes = [tuple(gate_up.shape), tuple(out.shape)]
        raise ValueError(f"act_and_mul: shapes of gate_up, out do not fit: {shapes}")
    if not gate_up.stride(1) == out.stride(1) == 1:
        raise ValueError("act_and_mul: the last dimension of every tensor must have stride 1")
    if out.numel() == 0:
        return
    config = nearest("act_and_mul", n=n)
    _launch(
        (tokens, triton.cdiv(n, config["BLOCK"])),
        (gate_up, out),
        (n, gate_up.stride(0), out.stride(0)),
        ACTIVATION=activation,
        **config,
    )


def act_and_mul_torch(gate_up: Tensor, activation: str, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    n = out.shape[-1]
    gate, up = gate_up[:, :n], gate_up[:, n:]
    if out.dtype == torch.float32:
        torch.mul(_ACTIVATIONS[activation](gate), up, out=out)
    else:
        out.copy_(_ACTIVATIONS[activation](gate.float()) * up)


act_and_mul = register(act_and_mul_torch, mutates=("out",), triton=act_and_mul_triton)

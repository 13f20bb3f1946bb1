"""Activation of an ungated MLP, as in GPT-2, OPT and Falcon.

    out = activation(x)

Activations: "silu", "gelu" (with the error function), "gelu_tanh", "relu", "relu2" (`activations.py`).
Layouts: `x`, `out` `[tokens, n]`, unit stride in the last dimension, any stride between tokens. `out` may be `x`. One
floating type for both. Computed in float32, rounded once.

Called once a layer, between the two GEMMs of the MLP. Raises ValueError for an unknown activation or layout.
Bytes floor: 2 * tokens * n * element size (read x, write out). It takes the launch settings of `act_and_mul`; not
measured on a device yet.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.launch import Launcher, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .activations import ACTIVATIONS, activation


@triton.jit
def activate_kernel(
    x_ptr,  # [tokens, n]
    out_ptr,  # [tokens, n]
    n,
    stride_x_token,
    stride_out_token,
    ACTIVATION: tl.constexpr,  # key of ACTIVATIONS
    BLOCK: tl.constexpr,  # power of two
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < n
    launch_dependents(PDL)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + token * stride_x_token + columns, mask=valid, other=0.0).to(tl.float32)
    out = activation(x, ACTIVATION).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * stride_out_token + columns, out, mask=valid)


_launch = Launcher(activate_kernel, writes=("out",))


def activate_triton(x: Tensor, activation: str, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and layouts that the kernel does not read."""
    tokens, n = out.shape
    if activation not in ACTIVATIONS:
        raise ValueError(f"activate: unknown activation {activation!r}, use one of {', '.join(ACTIVATIONS)}")
    if x.shape != out.shape:
        raise ValueError(f"activate: shapes of x, out do not fit: {[tuple(x.shape), tuple(out.shape)]}")
    if not x.stride(1) == out.stride(1) == 1:
        raise ValueError("activate: the last dimension of every tensor must have stride 1")
    if out.numel() == 0:
        return
    config = nearest("act_and_mul", n=n)
    _launch(
        (tokens, triton.cdiv(n, config["BLOCK"])),
        (x, out),
        (n, x.stride(0), out.stride(0)),
        ACTIVATION=activation,
        **config,
    )


def activate_torch(x: Tensor, activation: str, out: Tensor) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    out.copy_(ACTIVATIONS[activation](x.float()))


activate = register(activate_torch, mutates=("out",), triton=activate_triton)

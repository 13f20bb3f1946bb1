"""Gated activation of the MLP (Shazeer, 2020), with optional W8A8 quantisation of its result.

    out = activation(gate_up[:, :n]) * gate_up[:, n:]

Activations: "silu", "gelu" (with the error function), "gelu_tanh", "relu", "relu2", and "clamped_swiglu", which has its
own formula (`activations.py`).
Layouts: `gate_up` `[tokens, 2 * n]`, gate first; `out` `[tokens, n]`; unit stride in the last dimension, any stride
between tokens. One floating type for both. Computed in float32, rounded once. `out` is also quantised where `quantised`
(`quantise.py`) says so; a scale over a whole token takes a thread block that computes the whole token, or, for few
tokens, a second launch.

Called once a layer, between the two GEMMs of the MLP. Raises ValueError for an unknown activation or layout.
Bytes floor: 3 * tokens * n * element size (read gate and up, write out). On an H200 in bfloat16 at 4,096 tokens and n
14,336: 98 % of copy bandwidth. Measurements: docs/lab/2026-11-norms-and-activations.md.
"""

# pyright: basic, reportArgumentType=false
import torch
from torch import Tensor

from ..runtime.launch import Launcher, compiling_only, launch_dependents, wait_for_previous
from ..runtime.register import register
from ..runtime.settings import nearest
from ..runtime.triton import tl, triton
from .activations import ACTIVATIONS, GATED, gated_activation
from .quantise import NOT_QUANTISED, Quantised, quantise_torch, store_quantised
from .quantise_rows import quantise_rows_triton


@triton.jit
def act_and_mul_kernel(
    gate_up_ptr,  # [tokens, 2 * n]
    out_ptr,  # [tokens, n]
    out8_ptr,  # [tokens, n] or None
    out_scale_ptr,  # [tokens] or [tokens, groups] or None
    static_ptr,  # [1] float32 or None
    n,
    stride_gate_up_token,
    stride_out_token,
    stride_out8_token,
    stride_scale_token,
    stride_scale_group,
    ACTIVATION: tl.constexpr,  # key of GATED
    GROUP: tl.constexpr,
    BOUND: tl.constexpr,
    TINIEST: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, a multiple of GROUP; at least n where a scale is measured over a whole token
    PDL: tl.constexpr,
):
    """One thread block computes BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = columns < n
    launch_dependents(PDL)
    wait_for_previous(PDL)
    gate_row = gate_up_ptr + token * stride_gate_up_token + columns
    gate = tl.load(gate_row, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(gate_row + n, mask=valid, other=0.0).to(tl.float32)
    out = gated_activation(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * stride_out_token + columns, out, mask=valid)
    if out8_ptr is not None:
        store_quantised(
            out.to(tl.float32), columns, n, out8_ptr + token * stride_out8_token,
            out_scale_ptr + token * stride_scale_token, stride_scale_group, static_ptr, GROUP, BOUND, TINIEST,
        )  # fmt: skip


_launch = Launcher(act_and_mul_kernel, writes=("out", "out8", "out_scale"))
_FEW_TOKENS = 256
"""Up to this many tokens, thread blocks of whole tokens leave most SMs idle, and a second launch is faster."""


def act_and_mul_triton(
    gate_up: Tensor,
    activation: str,
    out: Tensor,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and layouts that the kernel does not read."""
    tokens, n = out.shape
    if activation not in GATED:
        raise ValueError(f"act_and_mul: unknown activation {activation!r}, use one of {', '.join(GATED)}")
    if gate_up.shape != (tokens, 2 * n):
        shapes = [tuple(gate_up.shape), tuple(out.shape)]
        raise ValueError(f"act_and_mul: shapes of gate_up, out do not fit: {shapes}")
    if not gate_up.stride(1) == out.stride(1) == 1:
        raise ValueError("act_and_mul: the last dimension of every tensor must have stride 1")
    quantised.check("act_and_mul", tokens, n)
    if out.numel() == 0:
        return
    over_tokens = quantised.is_measured_by_token
    # A compile dry run does not meet every number of tokens.
    if over_tokens and (tokens <= _FEW_TOKENS or compiling_only()):
        act_and_mul_triton(gate_up, activation, out)
        quantise_rows_triton(out, quantised)
        if not compiling_only():
            return
    if over_tokens:
        block = triton.next_power_of_2(n)
        config = {"BLOCK": block, **nearest("quantise_rows", block=block)}
    else:
        config = nearest("act_and_mul", n=n)
    _launch(
        (tokens, triton.cdiv(n, config["BLOCK"])),
        (gate_up, out, *quantised.operands),
        (n, gate_up.stride(0), out.stride(0), *quantised.strides),
        ACTIVATION=activation,
        **quantised.constants,
        **config,
    )


def act_and_mul_torch(
    gate_up: Tensor,
    activation: str,
    out: Tensor,
    quantised: Quantised = NOT_QUANTISED,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    n = out.shape[-1]
    gate, up = gate_up[:, :n], gate_up[:, n:]
    if out.dtype == torch.float32 and activation in ACTIVATIONS:
        torch.mul(ACTIVATIONS[activation](gate), up, out=out)
    else:
        out.copy_(GATED[activation](gate.float(), up))
    quantise_torch(out, quantised)


act_and_mul = register(
    act_and_mul_torch, mutates=("out", "quantised_codes", "quantised_scale"), triton=act_and_mul_triton
)

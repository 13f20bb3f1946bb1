"""16-bit linear layer, with the gated activation as epilogue.

    out = x @ weight.T + bias
    out = activation(gate) * up, with `activation`, where gate and up are the halves of x @ weight.T + bias

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]` or, with `activation`, `[tokens, outputs / 2]`, `weight`
`[outputs, inputs]`, unit stride in the last dimension, any stride between rows; `bias` `[outputs]` or None. `weight`
may be read before the previous kernel has finished, and must not be what that writes. One floating type; sums are
float32, rounded once, and once more after the activation, as `act_and_mul` does to the bit. ValueError for an unknown
activation and for shapes that do not fit.

`bf16_ladder.py` chooses the kernel. Batches that are padded to one size (16, 32 or 64 tokens) give a token the same
result to the bit, whichever others are there, where cuBLAS does not compute them.

A layer calls it four times in a decode step, and the logits once; `token_linear` fuses more with the GEMV of a single
token, and `linear_split_k` is for few outputs. Bytes floor: outputs * inputs * element size.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..norm.act_and_mul import act_and_mul_torch
from ..norm.activations import GATED
from ..runtime.register import register
from .bf16_ladder import BF16, Bf16Problem, cublas_linear
from .ladder import launches


def linear_triton(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, activation: str | None = None) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and for shapes that do not fit.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    if activation is not None and activation not in GATED:
        raise ValueError(f"linear: unknown activation {activation!r}, use one of {', '.join(GATED)}")
    written = outputs if activation is None else outputs / 2
    if weight.shape[1] != inputs or out.shape != (tokens, written) or (bias is not None and bias.shape != (outputs,)):
        shapes = [tuple(tensor.shape) for tensor in (x, weight, bias, out) if tensor is not None]
        raise ValueError(f"linear: shapes of x, weight, bias, out do not fit: {shapes}")
    if tokens == 0:
        return
    for choice in launches(BF16, Bf16Problem.of(x, weight, out, activation)):
        choice.kernel.launch(x, weight, bias, out, activation, choice.settings)


def linear_torch(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, activation: str | None = None) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    cublas_linear(x, weight, bias, out, activation, act_and_mul_torch)


linear = register(linear_torch, mutates=("out",), triton=linear_triton)

"""Weight-only quantised linear layer (W4A16, W8A16): 16-bit tokens by codes in groups.

    out = x[:, perm] @ weight.T + bias, weight = (code - zero) * scale or table[code] * scale
    out = activation(gate) * up, with `activation`, where gate and up are the halves of that

Layouts: `x` `[tokens, inputs]`, `out` `[tokens, outputs]`, or `[tokens, outputs / 2]` with `activation`, unit stride in
the last dimension, one floating type; the activations are those of `act_and_mul`.
`perm` [inputs] int64, `bias` `[outputs]`, each or None. Groups of another size than 16, 32, 64, 128 or a multiple of
128 are right, but slow. ValueError for an unknown activation and for shapes that do not fit.

`weight_only_ladder.py` chooses the kernel, or `dequantise_matmul.py`, which computes more than 512 tokens. Batches that
are padded to one size give a token the same result to the bit, whichever others are there.

A layer calls it for each of its GEMMs. Bytes floor: outputs * inputs * bits / 8, and the scales. On an H200 57344 x
8192 with one token runs at 87 % of a copy's bandwidth. Lab: docs/lab/2026-11-w4a16-small-batches.md.
"""

# pyright: basic
import torch
from torch import Tensor

from ..norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from ..norm.activations import GATED
from ..runtime.register import register
from .group_quantisation import BLOCK, PackedMatrix
from .ladder import launches
from .weight_only_ladder import WEIGHT_ONLY, WeightOnlyProblem


def weight_only_linear_triton(
    x: Tensor,
    weight: PackedMatrix,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
) -> None:
    """Triton implementation. Raises ValueError for an unknown activation and for shapes that do not fit.

    It runs on one stream at a time, as thread blocks of all calls count their arrivals in one place, and once before a
    capture.
    """
    _check(x, weight.packed, bias, out, activation)
    tokens = len(x)
    if tokens == 0:
        return
    if perm is not None:
        x = x.index_select(1, perm)
    problem = WeightOnlyProblem.of(x, weight, out)
    kernel = WEIGHT_ONLY.pick(problem).kernel
    if "activation" in kernel.fuses:
        kernel.launch(x, weight, bias, out, activation)
        return
    result = out if activation is None else out.new_empty(tokens, weight.outputs)
    for choice in launches(WEIGHT_ONLY, problem):
        choice.kernel.launch(x, weight, bias, result, choice.settings)
    if activation is not None:
        act_and_mul_triton(result, activation, out)


def _check(x: Tensor, packed: Tensor, bias: Tensor | None, out: Tensor, activation: str | None) -> None:
    tokens, inputs = x.shape
    outputs = packed.shape[0]
    width = -(-inputs // BLOCK) * BLOCK // 8 if packed.dtype == torch.int32 else inputs
    written = outputs if activation is None else outputs / 2
    if packed.shape[1] != width or out.shape != (tokens, written) or (bias is not None and bias.shape != (outputs,)):
        shapes = [tuple(tensor.shape) for tensor in (x, packed, bias, out) if tensor is not None]
        raise ValueError(f"weight_only_linear: shapes of x, packed, bias, out do not fit: {shapes}")
    if activation is not None and activation not in GATED:
        raise ValueError(f"weight_only_linear: unknown activation {activation!r}, use one of {', '.join(GATED)}")


def weight_only_linear_torch(
    x: Tensor,
    weight: PackedMatrix,
    perm: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    activation: str | None = None,
) -> None:
    """Torch implementation: the CPU path and the reference of the tests. Computes in float32."""
    x = (x if perm is None else x[:, perm]).float()
    result = x @ weight.values(x.shape[1]).t()
    result = result if bias is None else result + bias.float()
    if activation is None:
        out.copy_(result)
    else:
        act_and_mul_torch(result.to(out.dtype), activation, out)


weight_only_linear = register(weight_only_linear_torch, mutates=("out",), triton=weight_only_linear_triton)

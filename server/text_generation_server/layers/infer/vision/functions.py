"""Functions of vision towers. None depends on how large an image is: nothing may be compiled after warm-up."""

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import GATED, act_and_mul, rms_norm

from ....config.spec import NormSpec
from ....config.vision import VisionActivation
from ...weights.checkpoint import NormWeights
from ...weights.vision import Affine


def affine(x: Tensor, layer: Affine) -> Tensor:
    """Computes `x @ weight.T + bias`, within the bounds of the layer where it has some."""
    if not layer.bounds:
        return functional.linear(x, layer.weight, layer.bias)
    parts = layer.weight.chunk(len(layer.bounds))
    biases = [None] * len(parts) if layer.bias is None else layer.bias.chunk(len(parts))
    both = zip(parts, biases, layer.bounds, strict=True)
    made = [
        functional.linear(x.clamp(*bounds.inputs), weight, bias).clamp(*bounds.outputs) for weight, bias, bounds in both
    ]
    return made[0] if len(made) == 1 else torch.cat(made, dim=-1)


def activated(x: Tensor, activation: VisionActivation) -> Tensor:
    """Applies an activation."""
    if activation == "quick_gelu":
        return x * (1.702 * x).sigmoid()
    if activation == "silu":
        return functional.silu(x)
    if activation == "softmax":
        return x.softmax(-1)
    if activation == "relu":
        return functional.relu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def gated(gate_up: Tensor, activation: VisionActivation) -> Tensor:
    """Turns [S, 2 * n], gate first, into `activation(gate) * up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation not in GATED:
        return activated(gate, activation) * up
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    act_and_mul(gate_up, activation, out)
    return out


def normalised(x: Tensor, spec: NormSpec | None, weights: NormWeights | None) -> Tensor:
    """Normalises over the last dimension; without a norm it returns `x`. A norm without a weight has no weights."""
    if spec is None:
        return x
    if spec.kind == "layer":
        weight, bias = (None, None) if weights is None else (weights.weight, weights.bias)
        return functional.layer_norm(x, x.shape[-1:], weight, bias, spec.eps)
    if weights is not None and x.dim() == 2:
        out = torch.empty_like(x)
        rms_norm(x, weights.weight, spec.eps, out)
        return out
    if weights is not None and spec.wide:
        return (functional.rms_norm(x.float(), x.shape[-1:], eps=spec.eps) * weights.weight).to(x.dtype)
    # One kernel on a GPU, in float32 inside.
    narrow = functional.rms_norm(x, x.shape[-1:], eps=spec.eps)
    return narrow if weights is None else weights.weight * narrow

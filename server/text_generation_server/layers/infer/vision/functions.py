"""Functions of vision towers. They are torch's: sizes of images are many, and nothing may be compiled after warm-up."""

from torch import Tensor
from torch.nn import functional

from ....config.spec import NormSpec
from ....config.vision import VisionActivation
from ...weights.checkpoint import NormWeights
from ...weights.vision import Affine


def affine(x: Tensor, layer: Affine) -> Tensor:
    """Computes `x @ weight.T + bias`."""
    return functional.linear(x, layer.weight, layer.bias)


def activated(x: Tensor, activation: VisionActivation) -> Tensor:
    """Applies an activation."""
    if activation == "quick_gelu":
        return x * (1.702 * x).sigmoid()
    if activation == "silu":
        return functional.silu(x)
    if activation == "relu":
        return functional.relu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def normalised(x: Tensor, spec: NormSpec | None, weights: NormWeights | None) -> Tensor:
    """Normalises over the last dimension; without a norm it returns `x`."""
    if spec is None or weights is None:
        return x
    if spec.kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], weights.weight, weights.bias, spec.eps)
    wide = x.float()
    wide = wide * (wide.square().mean(-1, keepdim=True) + spec.eps).rsqrt()
    return (wide * weights.weight).to(x.dtype) if spec.wide else weights.weight * wide.to(x.dtype)

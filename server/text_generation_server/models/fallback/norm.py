"""RMS norms of a class, which are recognised by what they compute."""

from dataclasses import replace

import torch
from torch import Tensor, nn

import text_generation_kernels as kernels

from ...config.spec import NormSpec
from ...layers.weights.checkpoint import fold_norm_weight

_VARIANTS = (NormSpec(1.0), NormSpec(1.0, wide=True), NormSpec(1.0, wide=True, one_plus=True))
_SIZE = 64
_MAX_ROUNDED_APART = 0.02
"""Fraction of elements whose last bit may differ, because our operator adds in another order."""


class ServedNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + eps)` over the last dimension."""

    def __init__(self, weight: Tensor, variant: NormSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(fold_norm_weight(weight, variant), requires_grad=False)
        self._eps = variant.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises a tensor of any leading shape."""
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(flat)
        kernels.rms_norm(flat, self.weight, self._eps, out)
        return out.view(x.shape)


def recognise(module: nn.Module) -> NormSpec | None:
    """Finds out by trial with which spec our operator computes what `module` does. None: with none."""
    if not type(module).__name__.endswith("RMSNorm") or next(module.children(), None) is not None:
        return None
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if [name for name, _ in module.named_parameters()] != ["weight"] or module.get_parameter("weight").dim() != 1:
        return None
    if not isinstance(eps, float) or next(module.buffers(), None) is not None:
        return None
    variant = _variant(module, type(module), eps)
    return None if variant is None else replace(variant, eps=eps)


_known: dict[tuple[type[nn.Module], float], NormSpec | None] = {}


def _variant(module: nn.Module, kind: type[nn.Module], eps: float) -> NormSpec | None:
    """Finds the variant of a class and `eps`, by one trial for each pair."""
    if (kind, eps) not in _known:
        _known[kind, eps] = _tried(module, eps)
    return _known[kind, eps]


def _tried(module: nn.Module, eps: float) -> NormSpec | None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, _SIZE, generator=generator).to(torch.bfloat16)
    weight = torch.randn(_SIZE, generator=generator).to(torch.bfloat16)
    try:
        expected = torch.func.functional_call(module, {"weight": weight}, (x,))
    except (TypeError, RuntimeError):
        return None
    for variant in _VARIANTS:
        out = torch.empty_like(x)
        kernels.rms_norm(x, fold_norm_weight(weight, variant), eps, out)
        close = torch.allclose(out.float(), expected.float(), rtol=0.02, atol=1e-3)
        if expected.dtype == out.dtype and close and (out != expected).float().mean() < _MAX_ROUNDED_APART:
            return variant
    return None

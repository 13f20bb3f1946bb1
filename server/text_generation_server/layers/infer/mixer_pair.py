"""Attention and a state space beside each other in one layer (Falcon H1, TII, 2025): both read the same input, and
their outputs are added.
"""

import torch
from torch import Tensor

from ..weights import Activations, ActivationScheme, Wrap
from .fusion import OutputFusion
from .mixer import Mixer
from .state import InferState


class MixerPair(Mixer):
    """Two mixers of one layer."""

    def __init__(self, mixers: tuple[Mixer, Mixer], width: int, factors: tuple[float, float]) -> None:
        """`width` is that of what the heads of the second one read, and `factors` multiply the outputs."""
        self._mixers = mixers
        self._width = width
        self._factors = factors
        self.out = mixers[0].out

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`: what the first one wants."""
        return self._mixers[0].wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`. What the heads of the first one read comes first."""
        return torch.cat([mixer.forward(x, state) for mixer in self._mixers], dim=1)

    def project(self, heads: Tensor, state: InferState) -> Tensor:
        """See `Mixer`."""
        parts = heads.split((heads.shape[1] - self._width, self._width), dim=1)
        out, other = (mixer.project(part.contiguous(), state) for mixer, part in zip(self._mixers, parts, strict=True))
        return out.mul_(self._factors[0]).add_(other, alpha=self._factors[1])

    def project_fused(self, heads: Tensor, state: InferState, fusion: OutputFusion) -> Tensor:  # noqa: ARG002 - the others need it
        """See `Mixer`: no GEMM alone has the sum."""
        return self.project(heads, state)

    def adapted(self, wrap: Wrap) -> "MixerPair":
        """See `Mixer`."""
        first, second = self._mixers
        return MixerPair((first.adapted(wrap), second.adapted(wrap)), self._width, self._factors)

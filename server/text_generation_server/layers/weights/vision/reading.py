"""Reading of matrices and norms that stand anywhere in an encoder of images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ....config.spec import NormSpec
from ....config.vision import VisionNames
from ....weights import WeightSource
from ..checkpoint import NormWeights, fold_norm_weight
from .records import Affine, Bounds


@dataclass(frozen=True)
class Reader:
    """Reads tensors of a checkpoint. Raises ModelFilesError."""

    source: WeightSource
    names: VisionNames
    prefix: str
    """Of the tower."""
    projector: str
    """The prefix of the projector."""

    def stacked(self, names: Sequence[str], outputs: int, inputs: int, bias: bool, clipped: bool = False) -> Affine:
        """Reads matrices of as many outputs each, one below the other."""
        each = outputs // len(names)
        weights = [self.source.read(_tensor(name, "weight"), (each, inputs)) for name in names]
        biases = [self.source.read(_tensor(name, "bias"), (each,)) for name in names] if bias else []
        bounds = tuple(self._bounds(name.removesuffix(self.names.clipped)) for name in names) if clipped else ()
        return Affine(joined(weights), joined(biases) if biases else None, bounds)

    def _bounds(self, name: str) -> Bounds:
        ends = [self.source.read(f"{name}.{end}", ()).item() for end in ("input_min", "input_max")]
        others = [self.source.read(f"{name}.{end}", ()).item() for end in ("output_min", "output_max")]
        return Bounds((ends[0], ends[1]), (others[0], others[1]))

    def norm(self, name: str, spec: NormSpec | None, size: int) -> NormWeights | None:
        """Reads a norm, where there is one with a weight."""
        return None if spec is None or not spec.weight else self.present(name, spec, size)

    def present(self, name: str, spec: NormSpec, size: int) -> NormWeights:
        """Reads a norm."""
        weight = fold_norm_weight(self.source.read(f"{name}.weight", (size,)), spec)
        return NormWeights(weight, self.source.read(f"{name}.bias", (size,)) if spec.bias else None)


def _tensor(name: str, kind: str) -> str:
    return f"{name}{kind}" if name.endswith("_") else f"{name}.{kind}"


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors, one below the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))

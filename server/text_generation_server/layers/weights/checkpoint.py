"""The checkpoint of a model, as one rank reads it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...config.names import TensorNames
from ...config.quantisation import UNQUANTISED, Schemes
from ...config.spec import DecoderSpec, NormSpec
from ...distributed import TensorParallelGroup
from ...weights import DummySource, StackedSource, WeightSource


@dataclass(frozen=True)
class Matrices:
    """Where stored matrices are, and how each is quantised: all that their readers (`readers/`) know of a model."""

    source: WeightSource
    schemes: Schemes = field(default=UNQUANTISED, kw_only=True)

    @property
    def transposed(self) -> bool:
        """Whether matrices are stored [inputs, outputs]."""
        return False

    @property
    def makes_quantised(self) -> bool:
        """Whether matrices are read with 16 bits and quantised here: with `--quantize`, and for random weights, which
        so need no stored layout.
        """
        return self.schemes.online or isinstance(self.source, DummySource)

    @property
    def dtype(self) -> torch.dtype:
        """The type of all weights that are not quantised."""
        return self.source.empty((0,)).dtype

    @property
    def experts_take_codes(self) -> bool:
        """Whether the MoE kernels read codes: they multiply them by 16-bit inputs."""
        return not self.source.empty((0,)).is_cuda or self.dtype.itemsize == 2


@dataclass(frozen=True)
class Checkpoint(Matrices):
    """Where the tensors of a decoder of ours are, what they are called, and which rank this is."""

    spec: DecoderSpec
    names: TensorNames
    group: TensorParallelGroup
    prefix: str

    @classmethod
    def of(
        cls,
        source: WeightSource,
        spec: DecoderSpec,
        names: TensorNames,
        group: TensorParallelGroup,
        schemes: Schemes = UNQUANTISED,
    ) -> "Checkpoint":
        """With the first prefix under which there is an embedding, and the layout of experts that is stored."""
        names = names.as_stored(len(spec.layers), source.has)
        experts = max((layer.moe.experts for layer in spec.layers if layer.moe is not None), default=0)
        # Random weights are there under any name.
        if names.experts_apart and not isinstance(source, DummySource):
            source = StackedSource(source, names.experts(gated=True), experts)
        return cls(source, spec, names, group, names.prefix(source.has), schemes=schemes)

    @property
    def transposed(self) -> bool:
        """See `Matrices`."""
        return self.names.transposed

    @property
    def is_first(self) -> bool:
        """Whether this rank adds the biases of row-parallel matrices, whose outputs are all-reduced."""
        return self.group.rank == 0

    @property
    def head(self) -> str:
        """The whole name of the output embedding (LM head)."""
        return self.names.heads.get(self.prefix, self.names.head)

    def outside(self, name: str) -> str:
        """Returns the whole name of a tensor outside the layers."""
        return f"{self.prefix}{name}"

    def inside(self, layer: int, name: str) -> str:
        """Returns the whole name of a tensor of a layer."""
        return f"{self.prefix}{self.names.inside(layer, name)}"

    def norm(self, name: str, spec: NormSpec, size: int) -> "NormWeights":
        """Reads the weight, and the bias if it has one, of a norm over `size` elements, whole."""
        if not spec.weight:
            return NormWeights(self.source.empty((size,)).fill_(1.0), None)
        weight = self.source.read(f"{name}.weight", (size,))
        bias = self.source.read(f"{name}.bias", (size,)) if spec.bias else None
        return NormWeights(fold_norm_weight(weight, spec), bias, StoredNorm(name, spec, weight.new_empty(0)))


@dataclass(frozen=True)
class StoredNorm:
    """Where the weights of a norm come from."""

    name: str
    """Without `.weight` and `.bias`."""
    spec: NormSpec
    like: Tensor
    """Of the type and on the device in which they are read."""


@dataclass(frozen=True)
class NormWeights:
    """The weights of one norm."""

    weight: Tensor
    """[size], float32 where the norm multiplies in float32 (`NormSpec.wide`)."""
    bias: Tensor | None
    """[size]"""
    stored: StoredNorm | None = None
    """None: they are not read as they are."""


def fold_norm_weight(weight: Tensor, spec: NormSpec) -> Tensor:
    """Returns the factor that a norm multiplies by. A weight stored as w - 1 gets its 1 in float32: 16 bits would lose
    bits of it.
    """
    if spec.one_plus:
        return weight.to(torch.float32) + 1.0
    return weight.to(torch.float32) if spec.wide else weight

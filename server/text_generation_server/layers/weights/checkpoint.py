"""The checkpoint of a model, as one rank reads it."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...config.names import TensorNames
from ...config.quantisation import UNQUANTISED, Schemes
from ...config.spec import DecoderSpec, NormSpec
from ...distributed import TensorParallelGroup
from ...weights import STACK_SCALES, DummySource, ExpertStacks, ExpertStacksSource, StackedSource, WeightSource


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
        if not isinstance(source, DummySource) and (stacks := _quantised_stacks(source, spec, names)) is not None:
            source, names = ExpertStacksSource(source, stacks), _as_each(names, stacks)
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
    def of_blocks(self) -> "Checkpoint":
        """The same with the names of blocks that layers share."""
        return self if self.names.block is None else replace(self, names=self.names.block)

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


def _quantised_stacks(source: WeightSource, spec: DecoderSpec, names: TensorNames) -> ExpertStacks | None:
    """Those of a model that stores all experts of a layer in one tensor, quantised; None: it does not."""
    moe, layers = next((layer.moe for layer in spec.layers if layer.moe is not None), None), len(spec.layers)
    if moe is None or (names.experts_stack is None and names.experts_layout != "stacked"):
        return None
    matrices = names.expert_gate, names.expert_up, names.expert_down
    gate_up, down = names.experts_stack or (names.expert_gate, names.expert_down)
    if names.experts_stack is None:
        matrices = f"{gate_up}.{{expert}}.gate", f"{gate_up}.{{expert}}.up", f"{down}.{{expert}}"
    if not any(names.in_a_layer(f"{gate_up}{each}", layers, source.has) for each in STACK_SCALES):
        return None
    layout = names.stack_layout if names.experts_stack else names.experts_layout
    is_transposed = layout == "transposed"
    if layout == "as shaped":
        sizes = {gate_up: 2 * moe.inner, down: moe.latent or spec.hidden_size}
        is_transposed = not all(_outputs_first(source, names, layers, *each) for each in sizes.items())
    return ExpertStacks(*matrices, gate_up, down, moe.experts, is_transposed)


def _as_each(names: TensorNames, stacks: ExpertStacks) -> TensorNames:
    """The names of the matrices of each expert instead of those of the stacks."""
    matrices = {"expert_gate": stacks.gate, "expert_up": stacks.up, "expert_down": stacks.down}
    return replace(names, experts_layout="each", experts_stack=None, **matrices)


def _outputs_first(source: WeightSource, names: TensorNames, layers: int, stack: str, outputs: int) -> bool:
    """Whether the second dimension of a stack, as the first layer that has it stores it, is that of the outputs."""
    prefix = names.prefix(source.has)
    wholes = (f"{prefix}{names.inside(index, stack)}" for index in range(layers))
    stored = (each for whole in wholes for each in (whole, f"{whole}.weight", f"{whole}.weight_packed"))
    return source.shape(next(filter(source.has, stored), stack))[1:2] == (outputs,)


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

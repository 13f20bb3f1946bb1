"""Norms that adapters replace (`modules_to_save`, `bias`)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...adapters import Change, Replaced
from .checkpoint import NormWeights, fold_norm_weight
from .current_adapters import CurrentAdapters, Room
from .linear import total_bytes


@dataclass(frozen=True)
class NewNorm:
    """The weights of a norm of one adapter, whole on every rank."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, base: NormWeights, changes: Mapping[str, Change]) -> "NewNorm | None":
        """Of an adapter with these changes; None: it leaves the norm as it is."""
        if base.stored is None:
            return None
        name, spec, like = base.stored.name, base.stored.spec, base.stored.like
        weight, bias = changes.get(f"{name}.weight"), changes.get(f"{name}.bias")
        if not cls.names_of(base, changes):
            return None
        made_weight, made_bias = base.weight, base.bias
        if isinstance(weight, Replaced):
            made_weight = fold_norm_weight(weight.tensor.to(like), spec)
        if isinstance(bias, Replaced):
            made_bias = bias.tensor.to(like)
        return cls(made_weight, made_bias)

    @classmethod
    def names_of(cls, base: NormWeights, changes: Mapping[str, Change]) -> set[str]:
        """Returns the tensors among `changes` that a norm takes."""
        if base.stored is None:
            return set()
        name = base.stored.name
        names = {f"{name}.weight", f"{name}.bias"}
        found = {each for each in names if isinstance(changes.get(each), Replaced)}
        return set() if f"{name}.bias" in found and base.bias is None else found


class ReplacedNorm:
    """The weights of all adapters, of tokens whose adapter has some."""

    def __init__(self, base: NormWeights, made: Mapping[int, NewNorm], room: Room, current: CurrentAdapters) -> None:
        """`made` is by generation; they stay on the device, whichever adapters have numbers."""
        self._current = current
        weight, bias = base.weight, base.bias
        self._weights = torch.stack([each.weight.to(weight) for each in made.values()])
        biases = [each.bias.to(bias) for each in made.values() if each.bias is not None and bias is not None]
        self._biases = torch.stack(biases) if biases else None
        self._places = torch.full((1 + room.adapters,), -1, dtype=torch.int32, device=weight.device)
        self._of = {generation: place for place, generation in enumerate(made)}

    def has(self, generation: int) -> bool:
        """Whether the weights of an adapter are here."""
        return generation in self._of

    def put(self, number: int, generation: int) -> None:
        """Gives a number the weights of a generation, if it has some."""
        self._places[number].fill_(self._of.get(generation, -1))

    def apply(self, x: Tensor, eps: float, is_rms: bool, out: Tensor) -> None:
        """Writes the norm of `x` [T, hidden] to `out`, of tokens whose adapter has weights of its own."""
        numbers = self._current.step.numbers
        kernels.replace_norm(x, numbers, self._places, self._weights, self._biases, eps, is_rms, out)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return total_bytes(self._weights, self._biases, self._places)

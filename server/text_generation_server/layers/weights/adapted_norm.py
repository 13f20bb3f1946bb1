"""Norms that adapters replace (`modules_to_save`, `bias`)."""

from collections.abc import Mapping, Sequence
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
    names: frozenset[str]
    """The tensors that it has from the adapter."""

    @classmethod
    def of(cls, base: NormWeights, changes: Mapping[str, Change]) -> "NewNorm | None":
        """Of an adapter with these changes; None: it leaves the norm as it is."""
        if base.stored is None:
            return None
        name, spec, like = base.stored.name, base.stored.spec, base.stored.like
        weight, bias = changes.get(f"{name}.weight"), changes.get(f"{name}.bias")
        names = [f"{name}.weight"] * isinstance(weight, Replaced) + [f"{name}.bias"] * isinstance(bias, Replaced)
        if not names or (isinstance(bias, Replaced) and base.bias is None):
            return None
        made_weight, made_bias = base.weight, base.bias
        if isinstance(weight, Replaced):
            made_weight = fold_norm_weight(weight.tensor.to(like), spec)
        if isinstance(bias, Replaced):
            made_bias = bias.tensor.to(like)
        return cls(made_weight, made_bias, frozenset(names))


class ReplacedNorm:
    """The weights of all adapters, of tokens whose adapter has some."""

    def __init__(self, base: NormWeights, made: Sequence[NewNorm | None], room: Room, current: CurrentAdapters) -> None:
        """Allocates room for as many as `made` has; `put` fills it."""
        self._current = current
        count = sum(each is not None for each in made)
        self._weights = base.weight.new_zeros(count, *base.weight.shape)
        self._biases = None if base.bias is None else base.bias.new_zeros(count, *base.bias.shape)
        self._places = torch.full((1 + room.adapters,), -1, dtype=torch.int32, device=base.weight.device)
        self._used: dict[int, int] = {}

    def put(self, number: int, made: NewNorm | None) -> None:
        """Writes the weights of an adapter; None: it has none. Raises ValueError where there is no room."""
        self._used.pop(number, None)
        self._places[number] = -1
        if made is None:
            return
        place = next((each for each in range(len(self._weights)) if each not in self._used.values()), None)
        if place is None:
            raise ValueError("there is no room for the norms of another adapter")
        self._weights[place] = made.weight
        if self._biases is not None and made.bias is not None:
            self._biases[place] = made.bias
        self._places[number], self._used[number] = place, place

    def apply(self, x: Tensor, eps: float, is_rms: bool, out: Tensor) -> None:
        """Writes the norm of `x` [T, hidden] to `out`, of tokens whose adapter has weights of its own."""
        numbers = self._current.step.numbers
        kernels.replace_norm(x, numbers, self._places, self._weights, self._biases, eps, is_rms, out)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return total_bytes(self._weights, self._biases, self._places)

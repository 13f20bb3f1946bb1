"""How a step's tokens spread over ranks that have whole experts each: all ranks wait for the one with the most.

Rank 0 counts, from the ids of experts that every rank finds by itself, in a few layers spread over the model. The last
layer computes only the tokens whose logits are wanted, so it is not among them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import LayerSpec
from ...distributed import TensorParallelGroup
from ..weights import even_span
from .state import InferState

_MOST_LAYERS = 4
"""Each costs a small kernel."""


class LayerLoad:
    """Counts in one layer."""

    def __init__(self, starts: Tensor, pairs: Tensor) -> None:
        """`starts` and `pairs` are those of `kernels.expert_load`."""
        self._starts = starts
        self._pairs = pairs

    def count(self, ids: Tensor, state: InferState) -> None:
        """Counts the step's tokens, padding left out. `ids` [T, slots] int32 are those of rank 0's `Routing`."""
        kernels.expert_load(ids, state.slots, state.dummy_slot, self._starts, self._pairs)


class ExpertLoad:
    """Counts in some layers of a model."""

    def __init__(self, layers: Sequence[int], world_size: int, device: torch.device) -> None:
        self._layers = layers
        self.pairs = torch.zeros(len(layers), world_size, dtype=torch.int32, device=device)
        """[layers, ranks]: of the newest step, how many times one of its tokens has one of the rank's experts."""

    @classmethod
    def of(cls, layers: Sequence[LayerSpec], group: TensorParallelGroup, device: torch.device) -> "ExpertLoad | None":
        """Returns what this rank counts in a model of these layers. None: ranks have no whole experts each, another
        rank counts, or no layer can be counted.
        """
        if not group.expert_parallel or group.world_size == 1 or group.rank > 0:
            return None
        present = [index for index, layer in enumerate(layers) if not layer.is_empty]
        mixtures = [index for index in present[:-1] if layers[index].moe is not None]
        return cls(_spread(mixtures), group.world_size, device) if mixtures else None

    def of_layer(self, index: int, experts: int) -> LayerLoad | None:
        """Returns what counts in layer `index`, which has so many experts on all ranks; None: nothing does."""
        if index not in self._layers:
            return None
        pairs = self.pairs[self._layers.index(index)]
        starts = [even_span(experts, rank, len(pairs))[0] for rank in range(len(pairs))]
        return LayerLoad(torch.tensor([*starts, experts], dtype=torch.int32, device=pairs.device), pairs)


def _spread(layers: Sequence[int]) -> list[int]:
    """Returns the middles of equal parts of `layers`."""
    parts = min(_MOST_LAYERS, len(layers))
    return [layers[(2 * part + 1) * len(layers) // (2 * parts)] for part in range(parts)]

"""From token ids to hidden states."""

from torch import Tensor
from torch.nn import functional

from ..weights import PreLayerWeights


class PreLayer:
    """Looks token ids up in the embedding, which every rank holds whole."""

    def __init__(self, weights: PreLayerWeights) -> None:
        self._weights = weights

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] int64 to [T, hidden]. Ids must lie in the vocabulary."""
        return functional.embedding(input_ids, self._weights.embedding)

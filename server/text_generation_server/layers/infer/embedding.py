"""From token ids to hidden states."""

from torch import Tensor
from torch.nn import functional

from ...config.spec import EmbeddingSpec
from ..weights import EmbeddingWeights, rounded
from .norm import Norm
from .state import InferState


class Embedding:
    """Looks token ids, and positions where they are learned, up in tables that every rank holds whole."""

    def __init__(self, spec: EmbeddingSpec, weights: EmbeddingWeights, norm: Norm | None) -> None:
        self.dtype = weights.tokens.dtype
        self.device = weights.tokens.device
        self._scale = rounded(spec.scale, self.dtype) if spec.scale_rounded else spec.scale
        self._first_position = spec.first_position
        self._weights = weights
        self._norm = norm

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """[T] int64 to [T, hidden]. Ids must lie in the vocabulary."""
        x = functional.embedding(input_ids, self._weights.tokens)
        if self._scale != 1.0:
            x.mul_(self._scale)
        if self._weights.positions is not None:
            x.add_(functional.embedding(state.positions + self._first_position, self._weights.positions))
        if self._norm is not None:
            self._norm.apply(x, x)
        return x

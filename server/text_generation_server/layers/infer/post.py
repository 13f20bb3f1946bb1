"""From hidden states to logits."""

from torch import Tensor

from ... import kernels
from ...distributed import TensorParallelGroup
from ..weights import PostLayerWeights
from .state import LINEAR_BLOCK


class PostLayer:
    """Normalises the tokens that need logits; each rank computes its part of the vocabulary."""

    def __init__(
        self, weights: PostLayerWeights, rms_norm_eps: float, vocab_size: int, group: TensorParallelGroup
    ) -> None:
        self._weights = weights
        self._eps = rms_norm_eps
        self._vocab_size = vocab_size
        self._group = group

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[N, hidden] each to the normalised hidden states, in the memory of `x`."""
        kernels.add_rms_norm(x, residual, self._weights.norm, self._eps, x)
        return x

    def logits(self, hidden: Tensor, deterministic: bool) -> Tensor:
        """[N, hidden] to [N, vocab_size], equal on all ranks; `deterministic` as in `InferState`.

        Every column is computed by one rank and gathered, so ranks cannot differ in a last bit.
        """
        shard = self._weights.lm_head.apply(hidden, LINEAR_BLOCK if deterministic else None)
        return self._group.all_gather_last_dim(shard)[:, : self._vocab_size]

"""From hidden states to logits."""

from torch import Tensor

from ...config.spec import HeadSpec
from ...distributed import TensorParallelGroup
from ..weights import Activations, Linear
from .state import LINEAR_BLOCK


class Head:
    """Each rank computes its part of the vocabulary."""

    def __init__(self, spec: HeadSpec, linear: Linear, vocab_size: int, group: TensorParallelGroup) -> None:
        self._spec = spec
        self._linear = linear
        self.vocab_size = vocab_size
        self._group = group

    def logits(self, hidden: Tensor, deterministic: bool) -> Tensor:
        """[N, hidden] to [N, vocab_size], equal on all ranks; `deterministic` as in `InferState`.

        Every column is computed by one rank and gathered, so ranks cannot differ in a last bit.
        """
        shard = self._linear.apply(Activations(hidden), LINEAR_BLOCK if deterministic else None)
        scale, cap = self._spec.scale, self._spec.softcap
        if cap:
            shard.mul_(scale / cap).tanh_().mul_(cap)
        elif scale != 1.0:
            shard.mul_(scale)
        return self._group.all_gather_last_dim(shard)[:, : self.vocab_size]

"""Output head: from hidden states to logits."""

from torch import Tensor

from ...config.spec import HeadSpec
from ..weights import Activations, Linear, VocabularyShard
from .state import LINEAR_BLOCK


class Head:
    """Computes the logits of this rank's vocabulary shard."""

    def __init__(self, spec: HeadSpec, linear: Linear, vocabulary: VocabularyShard) -> None:
        self._spec = spec
        self.linear = linear
        self.vocabulary = vocabulary

    def adapted(self, linear: Linear) -> "Head":
        """Returns a head for tokens with adapters, with `linear` in place of its own."""
        return Head(self._spec, linear, self.vocabulary)

    def logits(self, hidden: Tensor, deterministic: bool) -> Tensor:
        """Turns [N, hidden] into [N, width of the shard]. `deterministic` has the meaning of `InferState`."""
        logits = self.linear.apply(Activations(hidden), LINEAR_BLOCK if deterministic else None)
        scale, cap = self._spec.scale, self._spec.softcap
        if cap:
            logits.mul_(scale / cap).tanh_().mul_(cap)
        elif scale != 1.0:
            logits.mul_(scale)
        return logits

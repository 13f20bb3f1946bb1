"""Output head: from hidden states to logits."""

from torch import Tensor

from ...config.spec import HeadSpec
from ..weights import Activations, Linear, VocabularyShard
from .state import LINEAR_BLOCK


class Head:
    """Computes the logits of this rank's vocabulary shard, or those of all classes."""

    def __init__(self, spec: HeadSpec, linear: Linear, vocabulary: VocabularyShard) -> None:
        self._spec = spec
        self.linear = linear
        self.vocabulary = vocabulary

    @property
    def classes(self) -> int:
        """The classes that it scores; 0: it is an LM head."""
        return self._spec.classes

    def adapted(self, linear: Linear) -> "Head":
        """Returns a head for tokens with adapters, with `linear` in place of its own."""
        return Head(self._spec, linear, self.vocabulary)

    def logits(self, hidden: Tensor, deterministic: bool) -> Tensor:
        """Turns [N, hidden] into [N, width of the shard], or [N, classes]. `deterministic` has the meaning of
        `InferState`.
        """
        logits = self.linear.apply(Activations(hidden), LINEAR_BLOCK if deterministic else None)
        if self.classes:
            return logits[:, : self.classes]
        scale, cap = self._spec.scale, self._spec.softcap
        if cap:
            logits.mul_(scale / cap).tanh_().mul_(cap)
        elif scale != 1.0:
            logits.mul_(scale)
        return logits

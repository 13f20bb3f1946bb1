"""Output head: from hidden states to logits."""

from torch import Tensor

from ...config.spec import HeadSpec
from ..weights import Activations, Linear, VocabularyPart
from .state import LINEAR_BLOCK


class Head:
    """Each rank computes its part of the vocabulary."""

    def __init__(self, spec: HeadSpec, linear: Linear, vocabulary: VocabularyPart) -> None:
        self._spec = spec
        self._linear = linear
        self.vocabulary = vocabulary

    def logits(self, hidden: Tensor, deterministic: bool) -> Tensor:
        """[N, hidden] to [N, width of the part]; `deterministic` as in `InferState`."""
        logits = self._linear.apply(Activations(hidden), LINEAR_BLOCK if deterministic else None)
        scale, cap = self._spec.scale, self._spec.softcap
        if cap:
            logits.mul_(scale / cap).tanh_().mul_(cap)
        elif scale != 1.0:
            logits.mul_(scale)
        return logits

"""Logits of the whole vocabulary by the head of the model, on every rank."""

from torch import Tensor

from ..distributed import TensorParallelGroup
from ..layers.infer import Head


def whole_logits(head: Head, hidden: Tensor, group: TensorParallelGroup) -> Tensor:
    """Turns [D, hidden] into [D, vocabulary]. Ranks gather what each computes, so none differs in a last bit."""
    logits = head.logits(hidden, False)
    if group.world_size > 1:
        logits = group.all_gather(logits.contiguous()).transpose(0, 1).flatten(1)
    return logits[:, : head.vocabulary.vocab_size]

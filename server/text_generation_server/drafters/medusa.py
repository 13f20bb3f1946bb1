"""Heads of Medusa (Cai et al., 2024) in TGI's layout: head i drafts the token i + 1 places behind the newest one.

A head is some residual blocks, and a matrix of the whole vocabulary: its own (version 1), or that of the model (version
2). All heads read the last hidden states of the token behind which the newest one was chosen, so they keep nothing.

    x = x + silu(W x + b) for each block,  logits = head(x)

Called in every step. Bytes floor: the weights of as many heads as drafts are wanted, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import choose_draft

from ..config.medusa import MedusaConfig
from ..distributed import TensorParallelGroup
from ..layers.infer import CacheShape, Head
from ..layers.weights import Activations, Dense
from .base import Drafter, DraftStep
from .tensors import DrafterTensors
from .whole import whole_logits


@dataclass(frozen=True)
class MedusaHead:
    """The weights of one head, whole on every rank."""

    blocks: tuple[Dense, ...]
    """[hidden, hidden] each, with a bias."""
    out: Dense | None
    """[vocabulary, hidden]; None: that of the model."""


def load_medusa(config: MedusaConfig, tensors: DrafterTensors) -> list[MedusaHead]:
    """Takes all tensors of the heads. Raises ModelFilesError for one that is missing, wrong or left."""
    hidden = config.hidden_size

    def block(name: str) -> Dense:
        return Dense(
            tensors.weight(f"{name}.linear.weight", hidden, hidden), tensors.weight(f"{name}.linear.bias", hidden)
        )

    found: list[MedusaHead] = []
    for number in range(config.heads):
        blocks = tuple(block(f"{number}.{place}") for place in range(config.blocks))
        own = f"{number}.{config.blocks}.weight"
        out = Dense(tensors.weight(own, config.vocab_size, hidden)) if tensors.has(own) else None
        found.append(MedusaHead(blocks, out))
    tensors.check_all_taken()
    return found


class MedusaDrafter(Drafter):
    """See `Drafter`."""

    kind = "medusa"
    caches: Sequence[CacheShape] = ()
    feature_size = 0
    bytes_per_position = 0

    def __init__(
        self, config: MedusaConfig, heads: Sequence[MedusaHead], head: Head, group: TensorParallelGroup
    ) -> None:
        """`head` is that of the model, of which each rank of `group` has a shard of the vocabulary."""
        self._heads = heads
        self._head = head
        self._group = group
        like = heads[0].blocks[0].weight
        self._ids = torch.arange(config.vocab_size, device=like.device)

    def reserve_positions(self, count: int) -> None:
        """See `Drafter`: nothing of it depends on positions."""

    def read(self, features: Tensor) -> None:
        """See `Drafter`: it reads hidden states that every step has."""

    def draft(self, step: DraftStep) -> None:
        """See `Drafter`."""
        chosen, drafts = step.chosen, step.drafts
        if not len(chosen) or not step.wanted:
            return
        hidden = step.hidden if step.places is None else step.hidden.index_select(0, step.places)
        count = min(step.width, drafts.most, len(self._heads))
        drafts.counts[chosen] = torch.where(step.sequences.length[chosen] < drafts.limits[chosen], count, 0)
        tokens, generated = torch.empty_like(chosen), step.sequences.generated
        for number, head in enumerate(self._heads[:count]):
            logits = self._logits(head, hidden)
            choose_draft(logits, self._ids, chosen, generated, number, step.columns, drafts, tokens)

    def _logits(self, head: MedusaHead, x: Tensor) -> Tensor:
        """[D, vocabulary], the same on every rank."""
        for block in head.blocks:
            x = x + functional.silu(block.apply(Activations(x)))
        if head.out is not None:
            return head.out.apply(Activations(x))
        return whole_logits(self._head, x, self._group)

"""A whole model of the same vocabulary drafts, one token after the other, from the texts alone.

It keeps keys and values of each token in the slot of its position. Behind a step that decodes alone, one pass computes
the tokens that follow those of the step, so that the last of them is the newest one of its row. A step with chunks has
prompts from their first tokens on, or from those behind a cached prefix: one pass repeats it, another one computes the
newest token of each row. A further pass for each further draft follows.

Called in every step. Each pass reads all weights of the model, whole on every rank, and keys and values of the context.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ..layers.infer import CacheShape, InferState
from .base import DraftStep
from .chain import ChainDrafter, Made
from .pairs import followers_of, one_more, repeated


class WholeModel(Protocol):
    """What is called of the model; see `CausalLM`."""

    vocab_size: int
    device: torch.device
    caches: Sequence[CacheShape]
    bytes_per_position: int

    def reserve_positions(self, count: int) -> None:
        """See `CausalLM`."""
        ...

    def forward(self, input_ids: Tensor, state: InferState) -> Tensor:
        """See `CausalLM`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM`: of the whole vocabulary, as no other rank has a shard of it."""
        ...


class DraftModel(ChainDrafter):
    """See `Drafter`."""

    kind = "draft_model"
    keeps_pairs = False
    feature_size = 0

    def __init__(self, model: WholeModel, vocab_size: int) -> None:
        """`vocab_size` is that of the model for which it drafts: either may have ids behind the last token."""
        self._model = model
        self._shared = min(model.vocab_size, vocab_size)
        self._clamps = model.vocab_size < vocab_size
        self._ids = torch.arange(self._shared, device=model.device)
        self.caches = model.caches
        self.bytes_per_position = model.bytes_per_position

    def reserve_positions(self, count: int) -> None:
        """See `Drafter`."""
        self._model.reserve_positions(count)

    def read(self, features: Tensor) -> None:
        """See `Drafter`: it reads tokens alone."""

    def _begin(self, step: DraftStep, length: Tensor, limits: Tensor) -> Made:
        """See `ChainDrafter`."""
        empty = step.features
        if step.state.logit_tokens is None:
            return self._pass(*followers_of(step, 0), empty, step.last)
        made = self._pass(*repeated(step), empty, step.last[:0])
        if not len(step.chosen):
            return made
        ids = step.sequences.last_token[step.chosen]
        # It has a slot, if only a spare one.
        return self._pass(ids, one_more(step, length - 1, limits + 1, 0), empty, None)

    def _pass(self, ids: Tensor, state: InferState, hidden: Tensor, kept: Tensor | None) -> Made:
        """See `ChainDrafter`."""
        del hidden
        if self._clamps:
            ids = ids.clamp(max=self._shared - 1)
        if kept is not None:
            # Operators do not take 0 tokens.
            state = replace(state, logit_tokens=kept if len(kept) else ids.new_zeros(1))
        made = self._model.forward(ids, state)
        return Made(made, made)

    def _logits(self, normalised: Tensor) -> Tensor:
        """See `ChainDrafter`."""
        return self._model.logits(normalised)[:, : self._shared]

"""Drafters that draft one token after the other, each from the hidden states that they made of the one before.

A pair is a token and the hidden states of the token before it. The pair of the token at position p lies in the slot of
p, at position p - 1 of the drafter's own sequence: it depends on the ids up to p alone, as keys and values of the model
do, so that it may be shared with them. A step computes the pairs of all tokens that follow the ones that the model has
computed in it. Behind the pair of the newest token, each pass computes one more, of a token that was just drafted.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_kernels import choose_draft

from ..layers.infer import InferState
from .base import Drafter, DraftStep
from .pairs import followers_of, one_more


class Made(NamedTuple):
    """What a pass makes of pairs, [N, hidden] each."""

    normalised: Tensor
    """What the head reads."""
    hidden: Tensor
    """What the next pass reads."""


class ChainDrafter(Drafter):
    """See `Drafter`."""

    keeps_pairs = True
    _ids: Tensor
    """[ids that it may draft] int64, their numbers in the vocabulary of the model."""

    def draft(self, step: DraftStep) -> None:
        """See `Drafter`."""
        if not step.wanted:
            self._keep(step)
            return
        drafts, chosen = step.drafts, step.chosen
        length, limits = step.sequences.length[chosen], drafts.limits[chosen]
        made = self._begin(step, length, limits)
        count = min(step.width, drafts.most)
        drafts.counts[chosen] = torch.where(length < limits, count, 0)
        tokens, generated = torch.empty_like(chosen), step.sequences.generated
        for number in range(count if len(chosen) else 0):
            logits = self._logits(made.normalised)
            choose_draft(logits, self._ids, chosen, generated, number, step.columns, drafts, tokens)
            if number + 1 < count:
                made = self._pass(tokens, self._one_more(step, length + number, limits), made.hidden, None)

    def _begin(self, step: DraftStep, length: Tensor, limits: Tensor) -> Made:
        """Computes what has become known in a step, and returns what it makes of the newest token of each row that has
        got one, whose `length` and `limits` are [D] int64.
        """
        del length, limits
        return self._pass(*followers_of(step, 1), step.features, step.last)

    def _keep(self, step: DraftStep) -> None:
        """Computes what has become known in a step that decodes alone."""
        self._pass(*followers_of(step, int(self.keeps_pairs)), step.features, step.last[:0])

    def _one_more(self, step: DraftStep, position: Tensor, limits: Tensor) -> InferState:
        """Returns the state of a pass over one token of each of these rows, at `position`."""
        return one_more(step, position, limits, int(self.keeps_pairs))

    def _pass(self, ids: Tensor, state: InferState, hidden: Tensor, kept: Tensor | None) -> Made:
        """Computes pairs of `ids` and `hidden` states, and keeps their keys and values. Of these, `kept` are needed
        afterwards (None: all). It may reuse the memory of `hidden` without `kept`.
        """
        ...

    def _logits(self, normalised: Tensor) -> Tensor:
        """Turns [D, hidden] into [D, ids that it may draft], the same on every rank."""
        ...

"""What the engine does for a drafter (`drafters/`): memory beside the pool, and the step as the drafter sees it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import Drafts, SamplingColumns, Sequences, Windows

from ..drafters import Drafter, DraftStep
from ..layers.infer import InferState
from ..models.base import CausalLM
from .kv_pool import KVPool
from .running import SlotWrite, Vector
from .transfer import upload

_DRAFTED_EVERY = 8
"""Of steps with one token for each row, so many have drafts behind one of them."""


@dataclass(frozen=True)
class Passed:
    """A forward pass of the model, before its tokens are appended to the rows."""

    state: InferState
    rows: Tensor
    """[T] int64, the row of each token."""
    max_kv_len: int
    """An upper bound of the tokens that its rows can have slots for."""
    wants_drafts: bool = True
    """Whether drafts are wanted behind the tokens."""


class Drafting:
    """The engine's side of a drafter. The engine thread owns it."""

    def __init__(self, drafter: Drafter, model: CausalLM, pool: KVPool, max_tokens: int) -> None:
        """`max_tokens` are those of the largest step."""
        self._drafter = drafter
        self._pool = pool
        shape = (max_tokens, drafter.feature_size)
        self._features = torch.zeros(shape, dtype=model.dtype, device=model.device)

    @staticmethod
    def num_bytes(model: CausalLM, max_tokens: int, num_rows: int) -> int:
        """Returns the bytes beside the slots of the pool: spare slots, and features of a step."""
        if (drafter := model.drafter) is None:
            return 0
        spare = sum(cache.bytes_per_slot(model.dtype) for cache in drafter.caches)
        return (num_rows + 1) * spare + max_tokens * drafter.feature_size * model.dtype.itemsize

    def keep(self, tokens: int) -> None:
        """Keeps what the drafter reads of the forward pass that was just computed, over so many tokens."""
        self._drafter.read(self._features[:tokens])

    def spare(self, slot_table: Tensor, rows: Sequence[int], reach: Vector) -> None:
        """Lets the first position of each row that has no slot, or needs none, be in its spare slot. `reach` has the
        meaning of `RunningRows`.
        """
        index = np.array(rows, dtype=np.int64)
        wanted = np.stack((index, reach - 1, index + self._first_spare))[:, reach <= slot_table.shape[1]]
        if wanted.size and self._pool.of_drafter:
            places, positions, slots = upload(np.ascontiguousarray(wanted), slot_table.device)
            slot_table[places, positions] = slots.to(torch.int32)

    def grant(self, writes: Sequence[SlotWrite]) -> None:
        """Moves what lies in spare slots of rows to the first of their new slots. Where a row is not as far yet, what
        lands there is written again.
        """
        first = [(each.row, each.slots[0].start) for each in writes if each.slots]
        if not first or not self._pool.of_drafter:
            return
        rows, slots = upload(np.array(first, dtype=np.int64).T.copy(), self._features.device)
        for cache in self._pool.of_drafter:
            for part in (cache.k, cache.v):
                part.index_copy_(0, slots, part.index_select(0, rows + self._first_spare))

    @staticmethod
    def are_due(number: int) -> bool:
        """Whether step `number`, if it decodes one token of each row, has drafts behind it. Such steps are those of
        rows whose drafts are not worth checking: some tell whether that has changed, others need not pay for it.
        """
        return number % _DRAFTED_EVERY == 0

    def draft(
        self,
        passed: Passed,
        windows: Windows,
        last: Tensor,
        hidden: Tensor,
        places: Tensor | None,
        sequences: Sequences,
        drafts: Drafts,
        columns: SamplingColumns,
    ) -> None:
        """Drafts for the rows of `windows`, which have got tokens. `last`, `hidden` and `places` have the meaning of
        `DraftStep`.
        """
        self._drafter.draft(
            DraftStep(
                passed.state,
                passed.rows,
                self._features[: len(passed.rows)],
                windows.rows,
                last,
                hidden,
                places,
                windows.width,
                sequences,
                drafts,
                columns,
                self._pool.of_drafter,
                self._pool.num_slots,
                passed.max_kv_len,
                passed.wants_drafts,
            )
        )

    @property
    def _first_spare(self) -> int:
        return self._pool.num_slots + 1

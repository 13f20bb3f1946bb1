"""Inbox of token masks: it checks masks when they come, keeps them by the number of their plan, and lets the engine
wait.

Calls may bring the masks of a step before its plan or after it. The engine thread takes them once the forward pass of
the step is launched, and waits until they come, or until they never will. This module imports no torch.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import EngineError, InvalidRequest, MasksMissing, NotReady, PlanRefused
from .plans import MAX_AHEAD
from .requests import MaskForm, MaskWrite, StepMasks

WAIT_LIMIT_S = 60.0
"""How long a step waits for its masks after the previous step should be done. The sender of masks gives up earlier and
calls ClearCache; this limit is for senders that are gone."""


@dataclass(frozen=True)
class MaskLimits:
    """Bounds of what masks name: slots below `max_masks`, ids below `vocab_size`."""

    max_masks: int
    vocab_size: int


class WaitEnded(Exception):
    """The wait for masks has ended through no fault of the plan. The caller of the plan gets `told`."""

    def __init__(self, told: EngineError) -> None:
        super().__init__(str(told))
        self.told = told


class MaskInbox:
    """Masks by the number of their plan. Only the engine thread calls `take`, `skip` and `restart`; any thread may call
    the other methods.
    """

    def __init__(self, wait_limit_s: float = WAIT_LIMIT_S) -> None:
        self._wait_limit_s = wait_limit_s
        self._limits: MaskLimits | None = None
        self._changed = threading.Condition()
        self._first = 0
        """The lowest number whose masks may still come."""
        self._held: dict[int, StepMasks | InvalidRequest] = {}
        self._clears = 0
        """Calls of ClearCache that the engine thread has not executed yet."""
        self._closed: EngineError | None = None

    def open(self, limits: MaskLimits) -> None:
        """Accepts masks from now on."""
        with self._changed:
            self._limits = limits

    def put(self, masks: StepMasks) -> None:
        """Keeps masks for their plan.

        Raises `InvalidRequest` for masks that are wrong by themselves, with which their plan then fails too, and for a
        number that is out of turn, which harms no plan; `NotReady` before Warmup.
        """
        with self._changed:
            if self._limits is None:
                raise NotReady("call Warmup before any other call")
            # Masks may be one number further ahead than plans, because a plan may be waiting for its masks.
            last = self._first + MAX_AHEAD + 1
            if masks.number in self._held or not self._first <= masks.number <= last:
                raise InvalidRequest(
                    f"`number` {masks.number} is out of turn: masks come once for a plan, and those of plan "
                    f"{self._first} are the next"
                )
            try:
                check_masks(masks, self._limits)
                self._held[masks.number] = masks
            except InvalidRequest as error:
                self._held[masks.number] = InvalidRequest(str(error))
                raise
            finally:
                self._changed.notify_all()

    def take(self, number: int, before_s: float = 0.0) -> StepMasks:
        """Waits for the masks of plan `number`. They depend on the tokens of the previous step, which may take
        `before_s` seconds more. Masks for which this call waits are `late`.

        Raises `InvalidRequest` for wrong masks, `MasksMissing` where they do not come in time, and `WaitEnded` where
        ClearCache, or the end of the engine, is next.
        """
        limit_s = self._wait_limit_s + before_s
        with self._changed:
            late = number not in self._held
            self._changed.wait_for(
                lambda: number in self._held or self._clears > 0 or self._closed is not None, limit_s
            )
            self._first = number + 1
            found = self._held.pop(number, None)
            if isinstance(found, InvalidRequest):
                raise found
            if found is not None:
                return replace(found, late=True) if late else found
            if self._closed is not None:
                raise WaitEnded(self._closed)
            if self._clears > 0:
                raise WaitEnded(PlanRefused(f"ClearCache came before the masks of plan {number}"))
        raise MasksMissing(
            f"plan {number} has `constrained` rows, but no Constrain with `number` {number} came within "
            f"{limit_s:g} s; call ClearCache"
        )

    def skip(self, number: int) -> None:
        """Takes the turn of plan `number`, which has no constrained rows. Raises `InvalidRequest` where masks came for
        it.
        """
        with self._changed:
            self._first = number + 1
            if self._held.pop(number, None) is not None:
                raise InvalidRequest(f"Constrain came for plan {number}, which has no `constrained` rows")

    def abandon(self) -> None:
        """Ends all waits until `restart`, because the engine thread is about to execute ClearCache of everything."""
        with self._changed:
            self._clears += 1
            self._changed.notify_all()

    def restart(self) -> None:
        """Begins again at plan number 0, as ClearCache of everything does."""
        with self._changed:
            self._clears -= 1
            self._first = 0
            self._held.clear()

    def close(self, reason: EngineError) -> None:
        """Ends all waits for good, with `reason`."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify_all()


def check_masks(masks: StepMasks, limits: MaskLimits) -> None:
    """Checks masks as far as that is possible without their plan. Raises `InvalidRequest` naming the field."""
    if masks.counts and (len(masks.counts) != len(masks.rows) or min(masks.counts) < 1):
        raise InvalidRequest(f"`counts` must hold a number from 1 on for each of {len(masks.rows)} rows, or none")
    if (expected := sum(masks.counts) or len(masks.rows)) != len(masks.slots):
        each = "as many slots as `counts` says" if masks.counts else "one slot for each of `rows`"
        raise InvalidRequest(f"`slots` must hold {each}: {len(masks.slots)} for {expected}")
    if (highest := max(masks.slots, default=0)) >= limits.max_masks:
        raise InvalidRequest(f"`slots` names mask slot {highest}; there are {limits.max_masks}")
    if len({write.slot for write in masks.writes}) != len(masks.writes):
        raise InvalidRequest("`writes` names a mask slot twice")
    for write in masks.writes:
        _check_write(write, limits)


def _check_write(write: MaskWrite, limits: MaskLimits) -> None:
    if not 1 <= write.slot < limits.max_masks:
        raise InvalidRequest(
            f"`writes` names mask slot {write.slot}; slots 1 to {limits.max_masks - 1} may be written: slot 0 allows "
            "everything"
        )
    if write.form is None:
        raise InvalidRequest(f"the write of mask slot {write.slot} must have `bits`, `only` or `except`")
    if write.form is MaskForm.BITS:
        expected = -(-limits.vocab_size // 8)
        if len(write.content) != expected:
            raise InvalidRequest(
                f"`bits` of mask slot {write.slot} must be {expected} bytes, a bit for each of {limits.vocab_size} "
                f"ids, not {len(write.content)}"
            )
    elif len(write.content) and not 0 <= write.content.min() <= write.content.max() < limits.vocab_size:
        raise InvalidRequest(
            f"`{write.form.value}` of mask slot {write.slot} must name token ids below the vocabulary size "
            f"{limits.vocab_size}"
        )


def check_rows(masks: StepMasks, constrained: Sequence[int], widths: Mapping[int, int]) -> None:
    """Raises `InvalidRequest` unless the masks are for exactly the constrained rows of their plan, and for no more
    tokens than the windows of rows have in `widths`, which are 1 where it names none.
    """
    if len(set(masks.rows)) != len(masks.rows):
        raise InvalidRequest("`rows` names a row twice")
    if other := set(masks.rows).symmetric_difference(constrained):
        row = min(other)
        where = "`rows` of Constrain but not `constrained`" if row in masks.rows else "`constrained` but has no mask"
        raise InvalidRequest(f"plan {masks.number}: row {row} is in {where}")
    for row, count in masks.counts_of_rows.items():
        if count > (width := widths.get(row, 1)):
            raise InvalidRequest(
                f"plan {masks.number}: `counts` of row {row} must be at most {width}, the width of its window, not "
                f"{count}"
            )


def no_masks(number: int) -> StepMasks:
    """The `MaskSource` of callers whose plans have no constrained rows."""
    raise InvalidRequest(f"plan {number} has `constrained` rows, and nobody brings masks")

"""The order of plans: by their numbers, in whatever order they arrive. Only the engine thread uses it. This module
imports no torch.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from ..errors import InvalidRequest, PlanRefused

MAX_AHEAD = 2
"""How many plans may come before their turn: as many as a caller has in flight at once."""

T = TypeVar("T")


class PlanOrder(Generic[T]):
    """Plans, as values of any type, that wait for their turn. After a failure it refuses all plans until `restart`."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, T] = {}
        self._failed: int | None = None

    def put(self, number: int, plan: T) -> None:
        """Takes a plan. Raises `PlanRefused` after a failure, and `InvalidRequest` for a number that has had its turn
        or is too far ahead, which does not harm the other plans.
        """
        if self._failed is not None:
            raise PlanRefused(
                f"plan {number} is refused because plan {self._failed} failed; call ClearCache without a request first"
            )
        if number in self._waiting or not self._next <= number <= self._next + MAX_AHEAD:
            raise InvalidRequest(f"`number` {number} is out of turn: the next plan is {self._next}")
        self._waiting[number] = plan

    def due(self) -> Iterator[T]:
        """Yields the plans whose turn it is, one after the other."""
        while self._failed is None and self._next in self._waiting:
            self._next += 1
            yield self._waiting.pop(self._next - 1)

    def fail(self) -> list[T]:
        """Notes that the last due plan has failed. Returns the waiting plans."""
        self._failed = self._next - 1
        return self._drain()

    def restart(self) -> list[T]:
        """Begins again at plan number 0. Returns the waiting plans, whose predecessor never came."""
        self._next, self._failed = 0, None
        return self._drain()

    def _drain(self) -> list[T]:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

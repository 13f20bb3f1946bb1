"""The order of plans: by their numbers, whatever order they arrive in. Imports no torch; engine thread only."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from ..errors import InvalidRequest, PlanRefused

MAX_AHEAD = 2
"""Plans may come so many before their turn: as many as a caller has under way at once."""

T = TypeVar("T")


class PlanOrder(Generic[T]):
    """Plans, as values of any type, that wait for their turn. After a failure all are refused until `restart`."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, T] = {}
        self._failed: int | None = None

    def put(self, number: int, plan: T) -> None:
        """Takes a plan. Raises `PlanRefused` after a failure, and `InvalidRequest` for a number that has been or is
        too far ahead; the order of the others is not harmed by it.
        """
        if self._failed is not None:
            raise PlanRefused(
                f"plan {number} is refused because plan {self._failed} failed; call ClearCache without a request first"
            )
        if number in self._waiting or not self._next <= number <= self._next + MAX_AHEAD:
            raise InvalidRequest(f"`number` {number} is out of turn: the next plan is {self._next}")
        self._waiting[number] = plan

    def due(self) -> Iterator[T]:
        """The plans whose turn it is, one after the other."""
        while self._failed is None and self._next in self._waiting:
            self._next += 1
            yield self._waiting.pop(self._next - 1)

    def fail(self) -> list[T]:
        """The plan that was due last has failed. Returns those that wait."""
        self._failed = self._next - 1
        return self._drain()

    def restart(self) -> list[T]:
        """The next plan is number 0. Returns those that wait for one that never came."""
        self._next, self._failed = 0, None
        return self._drain()

    def _drain(self) -> list[T]:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting

"""A request that either client can send."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
SyncT = TypeVar("SyncT", covariant=True)
AsyncT = TypeVar("AsyncT", covariant=True)


@dataclass(frozen=True)
class Call(Generic[SyncT, AsyncT]):
    """A request, and what its answer becomes: `SyncT` in `Client`, `AsyncT` in `AsyncClient`.

    Attributes:
        path: Path below the address of the server.
        body: JSON object to send; None for a request that only reads.
        stream: Whether the answer is a stream of events.
        parse: Reads the value from the JSON answer, or the items from the JSON value of an event.
    """

    path: str
    body: dict[str, Any] | None
    stream: bool
    parse: Callable[[Any], Any]


def texts(values: str | Sequence[str] | None) -> list[str] | None:
    """A list of texts; one alone is not a sequence of its characters."""
    return [values] if isinstance(values, str) else None if values is None else list(values)


Answer: TypeAlias = Call[T, T]
Stream: TypeAlias = Call[Generator[T, None, None], AsyncGenerator[T, None]]

"""A request that either client can send."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
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
        body: JSON object to send.
        stream: Whether the answer is a stream of events.
        parse: Reads the value from the JSON answer, or the items from the JSON value of an event.
    """

    path: str
    body: dict[str, Any]
    stream: bool
    parse: Callable[[Any], Any]


Answer: TypeAlias = Call[T, T]
Stream: TypeAlias = Call[Generator[T, None, None], AsyncGenerator[T, None]]

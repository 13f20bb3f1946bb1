"""Server-sent events (WHATWG HTML, section 9.2): bytes of a response in, payloads of the answer out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from text_generation.errors import INCOMPLETE_STREAM, IncompleteGenerationError, UnknownError, parse_error

T = TypeVar("T")
DONE = "[DONE]"


class EventDecoder:
    """Cuts bytes into events and keeps what is not a whole event yet.

    Lines end at LF or CRLF only. `str.splitlines` would also break at U+2028 and others, which JSON text may hold.
    """

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of every event that `chunk` completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", errors="replace")
            if text.startswith("data:"):
                self._data.append(text.removeprefix("data:").removeprefix(" "))
            elif not text and self._data:
                data, self._data = "\n".join(self._data), []
                yield data
            # All else is a comment (keep-alive) or a field that these streams do not use.


class EventReader(Generic[T]):
    """Reads the items of one stream and knows whether it is complete.

    A stream is complete with `[DONE]`, or with an event that carries the whole `generated_text`.
    """

    def __init__(self, parse: Callable[[Any], Iterable[T]]) -> None:
        """Read items from the JSON value of an event with `parse`."""
        self._decoder = EventDecoder()
        self._parse = parse
        self.complete = False

    def feed(self, chunk: bytes) -> Iterator[T]:
        """Yield the items that `chunk` completes.

        Raises:
            TextGenerationError: The server sent an error event.
            UnknownError: An event is not what the API sends.
        """
        for data in self._decoder.feed(chunk):
            if data == DONE:
                self.complete = True
            else:
                yield from self._items(data)

    def end(self) -> None:
        """Raise `IncompleteGenerationError` if the stream ended too early."""
        if not self.complete:
            raise IncompleteGenerationError(INCOMPLETE_STREAM)

    def _items(self, data: str) -> Iterable[T]:
        payload = parse_json(data)
        if isinstance(payload, Mapping):
            event = cast("Mapping[str, Any]", payload)
            if event.get("error") is not None:
                raise parse_error(200, event)
            self.complete = self.complete or event.get("generated_text") is not None
        return self._parse(payload)


def parse_json(text: str | bytes) -> Any:
    """The JSON value of `text`; raises `UnknownError` with the beginning of a text that is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnknownError(
            f"the server sent {text[:80]!r} instead of JSON; is this a text-generation server?"
        ) from error

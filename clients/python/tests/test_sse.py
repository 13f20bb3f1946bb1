"""Event framing, whatever the pieces the bytes come in."""

from __future__ import annotations

from typing import Any

import pytest

from text_generation import errors
from text_generation.sse import EventDecoder, EventReader

STREAM = (
    'data: {"text": "é\u2028 日本"}\n\n'
    ":\n\n"
    'data:{"a": 1}\r\n\r\n'
    "event: x\nid: 3\ndata: one\ndata: two\n\n"
    "data:[DONE]\n\n"
)
EVENTS = ['{"text": "é\u2028 日本"}', '{"a": 1}', "one\ntwo", "[DONE]"]


def items(payload: Any) -> list[Any]:
    return [payload]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    data = STREAM.encode()
    decoder = EventDecoder()
    chunks = (data[start : start + size] for start in range(0, len(data), size))
    assert [event for chunk in chunks for event in decoder.feed(chunk)] == EVENTS


def test_an_event_comes_out_as_soon_as_it_is_whole() -> None:
    decoder = EventDecoder()
    assert list(decoder.feed(b"data: a\n")) == []
    assert list(decoder.feed(b"\ndata: b")) == ["a"]
    assert list(decoder.feed(b"\n\n")) == ["b"]


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b'data:{"generated_text": ""}\n\n'])
def test_a_stream_is_complete_with_done_or_with_the_whole_text(last: bytes) -> None:
    reader = EventReader(items)
    assert list(reader.feed(b'data: {"generated_text": null}\n\n')) == [{"generated_text": None}]
    with pytest.raises(errors.IncompleteGenerationError):
        reader.end()
    list(reader.feed(last))
    reader.end()


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b'{"error":"Input validation error: no","error_type":"validation"}', errors.ValidationError),
        (b'{"error":{"message":"no","type":"x","code":null},"error_type":"overloaded"}', errors.OverloadedError),
        (b'{"error":{"message":"no","http_status_code":422}}', errors.GenerationError),
        (b"{not json", errors.UnknownError),
    ],
)
@pytest.mark.parametrize("prefix", [b"data: ", b"data:"])
def test_error_events_raise(event: bytes, kind: type[Exception], prefix: bytes) -> None:
    reader = EventReader(items)
    with pytest.raises(kind, match="no"):
        list(reader.feed(prefix + event + b"\n\ndata: [DONE]\n\n"))

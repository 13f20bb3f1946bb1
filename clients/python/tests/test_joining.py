"""Chunks of a stream joined to the answer that there would have been without a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from stub import HEAD, call, chat, chat_events, frame, message_answer, message_events

from text_generation import AsyncClient, Client, join_chunks
from text_generation.codec import decode
from text_generation.errors import IncompleteGenerationError
from text_generation.types import ChatComplete, ChatCompletionChunk, Message

QUESTION = [Message("user", "What is the weather?")]
CALLS = [call(0, "weather", '{"city": "Zürich \\u00e9 \\"\U0001f600\\""}'), call(1, "time", "{}")]
ANSWERS = [
    message_answer("stop", content="Sunny. ☀"),
    message_answer("stop", content="Sunny.", reasoning_content="I look\nout. \u2028"),
    message_answer("tool_calls", tool_calls=CALLS),
    message_answer("tool_calls", content="I look.", reasoning_content="Hm.", tool_calls=CALLS),
    message_answer("length", tool_calls=[call(0, "weather", '{"city": "Zü')]),
]
WHOLE = [decode(ChatComplete, answer) for answer in ANSWERS]


class Bytes(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces of `size` bytes."""

    def __init__(self, events: list[Any], size: int) -> None:
        body = b"".join(frame(event) for event in events)
        self._pieces = [body[start : start + size] for start in range(0, len(body), size)]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def transport(events: list[Any], size: int) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _: httpx.Response(200, stream=Bytes(events, size)))


def joined(events: list[Any], size: int = 100_000) -> ChatComplete:
    with Client("http://host", transport=transport(events, size)) as client:
        return join_chunks(client.chat(QUESTION, stream=True))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_however_the_deltas_are_cut_they_join_to_the_whole_answer(number: int, size: int) -> None:
    assert joined(message_events(ANSWERS[number], size)) == WHOLE[number]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 256])
def test_however_the_bytes_are_cut_they_join_to_the_whole_answer(size: int) -> None:
    assert joined(message_events(ANSWERS[3], 4), size) == WHOLE[3]


@pytest.mark.parametrize("size", [1, 17])
def test_an_asynchronous_stream_joins_to_the_same(size: int) -> None:
    async def main() -> ChatComplete:
        async with AsyncClient("http://host", transport=transport(message_events(ANSWERS[3], 4), size)) as client:
            return join_chunks([chunk async for chunk in await client.chat(QUESTION, stream=True)])

    assert asyncio.run(main()) == WHOLE[3]


def test_a_stream_that_breaks_off_inside_a_call_is_incomplete() -> None:
    events = message_events(ANSWERS[2], 4)
    for end in range(1, len(events) - 1):
        with pytest.raises(IncompleteGenerationError):
            joined(events[:end])


def test_joined_text_and_usage_are_those_of_the_answer() -> None:
    assert joined(chat_events()) == decode(ChatComplete, chat())


def test_choices_calls_and_log_probabilities_may_come_in_any_order() -> None:
    def chunk(index: int, logprob: float, delta: dict[str, Any], reason: str | None = None) -> ChatCompletionChunk:
        logprobs = {"content": [{"token": "a", "logprob": logprob}]}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return decode(ChatCompletionChunk, {"object": "chat.completion.chunk", **HEAD, "choices": [choice]})

    def part(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "id": name, "function": {"name": name, "arguments": arguments}}]}

    answer = join_chunks(
        [
            chunk(1, -1.0, part(1, "[", "g")),
            chunk(0, -2.0, {"content": "a"}, "stop"),
            chunk(1, -3.0, part(0, "{", "f")),
            chunk(1, -4.0, part(1, "]")),
            chunk(1, -5.0, part(0, "}"), "tool_calls"),
        ]
    )
    assert [(choice.index, choice.finish_reason) for choice in answer.choices] == [(0, "stop"), (1, "tool_calls")]
    calls = answer.choices[1].message.tool_calls or []
    assert [(call.id, call.name, call.arguments) for call in calls] == [("f", "f", "{}"), ("g", "g", "[]")]
    assert [entry["logprob"] for entry in answer.choices[1].logprobs["content"]] == [-1.0, -3.0, -4.0, -5.0]


def test_nothing_joins_to_an_answer_without_choices() -> None:
    assert join_chunks([]).choices == []

"""Retries, timeouts and broken answers, against a transport that never leaves the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from stub import TEXT, frame, response, stream_events

from text_generation import AsyncClient, Client
from text_generation.errors import (
    ConnectionFailedError,
    GenerationError,
    IncompleteGenerationError,
    OverloadedError,
    ResponseTimeoutError,
    ShardNotReadyError,
    ShuttingDownError,
    TextGenerationError,
    UnauthorizedError,
    UnknownError,
)

Handler = Callable[[httpx.Request], httpx.Response]
OVERLOADED = {"error": "Model is overloaded", "error_type": "overloaded"}
SHUTTING_DOWN = {"error": "The server is shutting down", "error_type": "shutting_down"}


class Script:
    """Answers one after the other, and keeps the requests. An exception in the list is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of both clients, which take no time here."""
    seconds: list[float] = []

    async def sleep(wait: float) -> None:
        seconds.append(wait)

    monkeypatch.setattr("text_generation.client.time.sleep", seconds.append)
    monkeypatch.setattr("text_generation.async_client.asyncio.sleep", sleep)
    return seconds


def client_of(script: Handler, **options: Any) -> Client:
    return Client("http://host", transport=httpx.MockTransport(script), **options)


def generate(script: Handler, kind: str, **options: Any) -> str:
    """Generate with one of the four ways to ask; returns the text."""
    transport = httpx.MockTransport(script)
    if kind == "sync":
        return client_of(script, **options).generate("Hi").generated_text
    if kind == "sync stream":
        return "".join(answer.token.text for answer in client_of(script, **options).generate_stream("Hi"))
    client = AsyncClient("http://host", transport=transport, **options)

    async def stream() -> str:
        return "".join([answer.token.text async for answer in client.generate_stream("Hi")])

    if kind == "async":
        return asyncio.run(client.generate("Hi")).generated_text
    return asyncio.run(stream())


KINDS = pytest.mark.parametrize("kind", ["sync", "sync stream", "async", "async stream"])


def good(kind: str) -> httpx.Response:
    if "stream" in kind:
        return httpx.Response(200, content=b"".join(frame(event) for event in stream_events()))
    return httpx.Response(200, json=[response()])


def fresh(answer: httpx.Response | Exception) -> httpx.Response | Exception:
    """A copy of an answer, which can be sent only once."""
    if isinstance(answer, Exception):
        return answer
    return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@KINDS
@pytest.mark.parametrize(("status", "body"), [(429, OVERLOADED), (503, SHUTTING_DOWN)])
def test_a_busy_server_is_asked_again_when_it_says(
    kind: str, status: int, body: dict[str, str], waits: list[float]
) -> None:
    script = Script(httpx.Response(status, json=body, headers={"retry-after": "3"}), good(kind))
    assert generate(script, kind) == TEXT
    assert waits == [3.0]
    assert script.requests[0].content == script.requests[1].content


@KINDS
def test_a_refused_connection_is_tried_again(kind: str, waits: list[float]) -> None:
    script = Script(httpx.ConnectError("refused"), httpx.ConnectError("refused"), good(kind))
    assert generate(script, kind) == TEXT
    assert len(waits) == 2
    assert 0 < waits[0] < waits[1] < 1


@KINDS
def test_retries_are_bounded(kind: str) -> None:
    busy = [httpx.Response(429, json=OVERLOADED, headers={"retry-after": "1"}) for _ in range(9)]
    script = Script(*busy)
    with pytest.raises(OverloadedError) as error:
        generate(script, kind, max_retries=3)
    assert len(script.requests) == 4
    assert error.value.retry_after == 1.0

    script = Script(*[httpx.ConnectError("refused")] * 9)
    with pytest.raises(ConnectionFailedError, match="http://host"):
        generate(script, kind)
    assert len(script.requests) == 3


@KINDS
@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(429, json=OVERLOADED),
        httpx.Response(429, json=OVERLOADED, headers={"retry-after": "soon"}),
        httpx.Response(503, json=SHUTTING_DOWN, headers={"retry-after": "3600"}),
        httpx.Response(424, json={"error": "boom", "error_type": "generation"}, headers={"retry-after": "1"}),
        httpx.Response(500, json={"error": "boom", "error_type": "internal"}),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
        httpx.ReadTimeout("late"),
        httpx.ConnectTimeout("late"),
    ],
    ids=lambda answer: type(answer).__name__ if isinstance(answer, Exception) else str(answer.status_code),
)
def test_what_may_have_begun_is_not_sent_again(kind: str, answer: httpx.Response | Exception) -> None:
    script = Script(fresh(answer))
    with pytest.raises(TextGenerationError):
        generate(script, kind)
    assert len(script.requests) == 1


def test_retry_after_may_be_a_date(waits: list[float]) -> None:
    date = formatdate(time.time() + 20, usegmt=True)
    script = Script(httpx.Response(503, json=SHUTTING_DOWN, headers={"retry-after": date}), good("sync"))
    generate(script, "sync")
    assert 10 < waits[0] <= 20


def test_the_last_refusal_is_the_error() -> None:
    script = Script(httpx.ConnectError("refused"), httpx.Response(503, json=SHUTTING_DOWN))
    with pytest.raises(ShuttingDownError, match="shutting down"):
        generate(script, "sync")


@KINDS
def test_silence_names_the_timeout(kind: str) -> None:
    with pytest.raises(ResponseTimeoutError, match=r"silent for 2\.5 s") as error:
        generate(Script(httpx.ReadTimeout("late")), kind, timeout=2.5)
    assert isinstance(error.value, TimeoutError)


def test_timeout_headers_and_cookies_reach_the_request() -> None:
    script = Script(good("sync"))
    generate(script, "sync", headers={"Authorization": "Bearer key"}, cookies={"a": "b"}, timeout=7)
    request = script.requests[0]
    assert request.headers["authorization"] == "Bearer key"
    assert request.headers["cookie"] == "a=b"
    assert request.extensions["timeout"]["read"] == 7


@pytest.mark.parametrize(
    ("base", "generate_url", "chat_url"),
    [
        ("http://host", "http://host", "http://host/v1/chat/completions"),
        ("http://host/", "http://host/", "http://host/v1/chat/completions"),
        ("http://host/a/b", "http://host/a/b", "http://host/a/b/v1/chat/completions"),
    ],
)
def test_paths_are_below_the_address(base: str, generate_url: str, chat_url: str) -> None:
    script = Script(good("sync"), httpx.Response(404))
    client = Client(base, transport=httpx.MockTransport(script))
    client.generate("Hi")
    with pytest.raises(TextGenerationError):
        client.chat([{"role": "user", "content": "Hi"}])
    assert [str(request.url) for request in script.requests] == [generate_url, chat_url]


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that breaks off after what it holds, and knows whether it was closed."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        raise httpx.RemoteProtocolError("peer closed connection")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.close()


@KINDS
def test_an_answer_that_breaks_off_is_incomplete_and_not_asked_again(kind: str) -> None:
    script = Script(httpx.Response(200, stream=Broken(frame(stream_events()[0]))))
    with pytest.raises(IncompleteGenerationError, match="peer closed"):
        generate(script, kind)
    assert len(script.requests) == 1


@pytest.mark.parametrize("kind", ["sync stream", "async stream"])
def test_a_connection_that_breaks_after_the_last_token_harms_nothing(kind: str) -> None:
    body = Broken(*[frame(event) for event in stream_events()])
    assert generate(Script(httpx.Response(200, stream=body)), kind) == TEXT


@pytest.mark.parametrize("kind", ["sync stream", "async stream"])
def test_a_stream_without_its_last_token_is_incomplete(kind: str) -> None:
    with pytest.raises(IncompleteGenerationError):
        generate(Script(httpx.Response(200, content=frame(stream_events()[0]))), kind)


@pytest.mark.parametrize("kind", ["sync stream", "async stream"])
def test_a_stream_yields_what_came_before_its_error(kind: str) -> None:
    body = frame(stream_events()[0]) + frame({"error": "Model broke", "error_type": "generation"})
    script = Script(httpx.Response(200, content=body))
    seen: list[str] = []

    def consume() -> None:
        for answer in client_of(script).generate_stream("Hi"):
            seen.append(answer.token.text)

    async def consume_async() -> None:
        async for answer in AsyncClient("http://host", transport=httpx.MockTransport(script)).generate_stream("Hi"):
            seen.append(answer.token.text)

    with pytest.raises(GenerationError, match="Model broke"):
        consume() if kind == "sync stream" else asyncio.run(consume_async())
    assert seen == [" Paris"]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (httpx.Response(401), UnauthorizedError, "401 Unauthorized"),
        (httpx.Response(503, html="<h1>Bad gateway</h1>"), ShardNotReadyError, "503 Service Unavailable"),
        (httpx.Response(502, text="upstream is gone"), UnknownError, "upstream is gone"),
        (httpx.Response(500, json=["no", "object"]), UnknownError, "500 Internal Server Error"),
        (httpx.Response(599), UnknownError, "answered 599"),
        (httpx.Response(307, headers={"location": "/"}), UnknownError, "307 Temporary Redirect"),
        (httpx.Response(200, html="<h1>Hello</h1>"), UnknownError, "instead of JSON"),
        (httpx.Response(200, json=[]), UnknownError, "an empty list"),
        (httpx.Response(200, json="text"), UnknownError, "an object was expected"),
        (httpx.Response(200, json={"answer": 42}), UnknownError, "lacks `generated_text`"),
    ],
)
def test_answers_of_other_servers_are_explained(answer: httpx.Response, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        generate(Script(answer), "sync")


def test_the_answer_may_be_an_object_instead_of_a_list() -> None:
    assert generate(Script(httpx.Response(200, json=response())), "sync") == TEXT


def test_a_negative_number_of_retries_is_refused() -> None:
    with pytest.raises(TextGenerationError, match="max_retries"):
        Client("http://host", max_retries=-1)


def test_closing_an_iterator_closes_the_response() -> None:
    body = Broken(frame(stream_events()[0]))
    stream = client_of(Script(httpx.Response(200, stream=body))).generate_stream("Hi")
    next(stream)
    assert not body.closed
    stream.close()
    assert body.closed


def test_closing_an_asynchronous_iterator_closes_the_response() -> None:
    body = Broken(frame(stream_events()[0]))

    async def main() -> None:
        transport = httpx.MockTransport(Script(httpx.Response(200, stream=body)))
        stream = AsyncClient("http://host", transport=transport).generate_stream("Hi")
        await anext(stream)
        assert not body.closed
        await stream.aclose()
        assert body.closed

    asyncio.run(main())

"""Streams: framing, order, interleaving, stop strings, agreement with the plain answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from harness import Server


def events(server: Server, inputs: str, **parameters: object) -> Iterator[dict]:
    body = {"inputs": inputs, "parameters": parameters}
    with (
        httpx.Client(base_url=server.url, timeout=120) as client,
        client.stream("POST", "/generate_stream", json=body) as reply,
    ):
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-accel-buffering"] == "no"
        for line in reply.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def test_the_stream_says_what_the_plain_answer_says(server: Server) -> None:
    parameters = {"max_new_tokens": 12, "details": True}
    plain = server.generate("Hello world", **parameters)
    stream = list(events(server, "Hello world", **parameters))
    assert [event["index"] for event in stream] == list(range(1, len(stream) + 1))
    tokens = [event["token"] for event in stream]
    # The second request finds its prompt in the prefix cache: sums of other shapes are rounded otherwise.
    logprobs = [token.pop("logprob") for token in tokens]
    assert logprobs == pytest.approx([token.pop("logprob") for token in plain["details"]["tokens"]], abs=1e-4)
    assert tokens == plain["details"]["tokens"]
    assert all(event["generated_text"] is None and event["details"] is None for event in stream[:-1])
    last = stream[-1]
    assert last["generated_text"] == plain["generated_text"]
    assert last["details"]["finish_reason"] == plain["details"]["finish_reason"]
    assert last["details"]["generated_tokens"] == len(stream)
    assert last["details"]["input_length"] > 0


def test_a_stop_string_ends_the_text_with_itself(server: Server) -> None:
    text = server.generate("Hello world", max_new_tokens=40)["generated_text"]
    # Found inside the text, not at a token's end: take characters from the middle.
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    answer = server.generate("Hello world", max_new_tokens=40, stop=[stop])
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert answer["generated_text"] == text[: text.index(stop) + len(stop)]


def test_streams_interleave_and_a_late_request_starts_soon(server: Server) -> None:
    """A request that arrives during a long decode is answered while the first still runs."""
    first_running = threading.Event()
    second_done = threading.Event()
    order: list[str] = []

    def long_stream() -> None:
        for event in events(server, "A long story", max_new_tokens=400, ignore=True):
            order.append("long")
            if event["index"] == 5:
                first_running.set()

    def short_stream() -> None:
        for _ in events(server, "Short", max_new_tokens=3):
            order.append("short")
        second_done.set()

    long = threading.Thread(target=long_stream)
    long.start()
    assert first_running.wait(60)
    short = threading.Thread(target=short_stream)
    short.start()
    assert second_done.wait(60)
    long.join(60)
    short.join(60)
    assert "short" in order
    assert order.index("short") < len(order) - 1 - order[::-1].index("long")


def test_an_invalid_stream_is_one_error_event(server: Server) -> None:
    (event,) = events(server, "Hello", temperature=0.0)
    assert event["error"] == "Input validation error: `temperature` must be strictly positive"
    assert event["error_type"] == "validation"

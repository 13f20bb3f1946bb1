"""Validation of requests before they are sent, and reading and writing of JSON."""

from __future__ import annotations

from typing import Any

import pytest
from stub import response

from text_generation.codec import decode, encode
from text_generation.errors import UnknownError, ValidationError
from text_generation.types import (
    ChatCompletionChunk,
    ChatRequest,
    Chunk,
    Details,
    FinishReason,
    Grammar,
    GrammarType,
    Message,
    Parameters,
    Request,
    Response,
    StreamResponse,
    Token,
    Tool,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("best_of", [1], [0, -1]),
        ("repetition_penalty", [0.5, 1, 2], [0, -1, NAN]),
        ("frequency_penalty", [-2, 0, 2], [-2.1, 2.1, NAN]),
        ("seed", [0, 1, 2**64 - 1], [-1]),
        ("temperature", [0.1, 1, 5], [0, -1, NAN]),
        ("top_k", [1, 50], [0, -1]),
        ("top_p", [0.01, 0.99], [0, 1, -1, 2, NAN]),
        ("typical_p", [0.01, 0.99], [0, 1, -1, 2, NAN]),
        ("truncate", [1], [0, -1]),
        ("top_n_tokens", [1, 5], [0, -1]),
        ("beam_width", [1, 8], [0, -1]),
    ],
)
def test_bounds_of_parameters(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(Parameters(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ValidationError, match=f"`{name}` .*{value}"):
            Parameters(**{name: value})


def test_best_of_needs_sampling_and_no_seed() -> None:
    sampling: list[dict[str, Any]] = [
        {"do_sample": True},
        {"temperature": 0.5},
        {"top_k": 2},
        {"top_p": 0.5},
        {"typical_p": 0.5},
    ]
    for parameters in sampling:
        Parameters(best_of=2, **parameters)
        with pytest.raises(ValidationError, match="`seed`"):
            Parameters(best_of=2, seed=0, **parameters)
    with pytest.raises(ValidationError, match="sampling"):
        Parameters(best_of=2)
    Parameters(best_of=1, seed=1)


def test_requests() -> None:
    Request("Hi", stream=True)
    with pytest.raises(ValidationError, match="`inputs`"):
        Request("")
    with pytest.raises(ValidationError, match="streaming"):
        Request("Hi", Parameters(best_of=2, do_sample=True), stream=True)


def test_grammars() -> None:
    schema = {"type": "object", "default": None}
    request = Request("Hi", Parameters(grammar=Grammar(GrammarType.Json, schema)))
    # None is left out of our own types, and stays in what the caller wrote.
    assert encode(request)["parameters"]["grammar"] == {"type": "json", "value": schema}
    for kind, value in ((GrammarType.Json, {}), (GrammarType.Regex, ""), (GrammarType.Regex, {"type": "object"})):
        with pytest.raises(ValidationError, match="`value`"):
            Grammar(kind, value)


def test_a_chat_request_is_plain_json() -> None:
    request = ChatRequest(
        model="tgi",
        messages=[Message("user", [Chunk("text", text="What is it?")]), {"role": "tool", "content": None}],
        tools=[Tool("function", {"name": "f", "parameters": {}})],
    )
    assert encode(request) == {
        "model": "tgi",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
            {"role": "tool", "content": None},
        ],
        "stream": False,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }


def test_reading_ignores_what_it_does_not_know_and_needs_only_what_is_required() -> None:
    payload: dict[str, Any] = {**response(), "new": {"in": "a later version"}}
    payload["details"]["prefill"] = None
    del payload["details"]["seed"]
    payload["details"]["tokens"] = [{"id": 1, "text": "a", "logprob": None, "rank": 3}]
    assert decode(Response, payload) == Response(
        payload["generated_text"], Details(FinishReason.Length, 2, tokens=[Token(1, "a")])
    )


def test_reading_nested_lists() -> None:
    payload = response()
    tokens = [[{"id": 1, "text": "a", "logprob": -1.0, "special": True}], []]
    payload["details"]["top_tokens"] = tokens
    other = {
        "generated_text": "b",
        "finish_reason": "eos_token",
        "generated_tokens": 1,
        "seed": 7,
        "top_tokens": tokens,
    }
    payload["details"]["best_of_sequences"] = [{**other, "top_tokens": tokens}]
    details = decode(Response, payload).details
    assert details.top_tokens == [[Token(1, "a", -1.0, True)], []]
    assert details.best_of_sequences is not None
    best = details.best_of_sequences[0]
    assert (best.finish_reason, best.seed) == (FinishReason.EndOfSequenceToken, 7)
    assert best.top_tokens == details.top_tokens


def test_reading_tool_calls_in_pieces() -> None:
    call = {"index": 0, "id": "0", "type": "function", "function": {"name": None, "arguments": '{"a"'}}
    choice = {"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}
    chunk = decode(ChatCompletionChunk, {"id": "", "object": "o", "created": 1, "model": "m", "choices": [choice]})
    calls = chunk.choices[0].delta.tool_calls
    assert calls is not None
    assert (calls[0].id, calls[0].function.name, calls[0].function.arguments) == ("0", None, '{"a"')


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (None, "an object was expected"),
        ([], "an object was expected"),
        ({"index": 1}, "StreamResponse lacks `token`"),
        ({"token": {"id": 1}}, "Token lacks `text`"),
        ({"token": {"id": 1, "text": "a"}, "top_tokens": 3}, "a list was expected"),
        (
            {"token": {"id": 1, "text": "a"}, "details": {"finish_reason": "bored", "generated_tokens": 1}},
            "'bored' is no FinishReason",
        ),
    ],
)
def test_answers_of_the_wrong_shape(payload: Any, message: str) -> None:
    with pytest.raises(UnknownError, match=message):
        decode(StreamResponse, payload)

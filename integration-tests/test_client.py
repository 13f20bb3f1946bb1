"""The project's own Python client against the real server: answers, streams, errors, and streams that are left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from harness import API_KEY, Server, wait_for

from text_generation import AsyncClient, Client
from text_generation.errors import OverloadedError, UnauthorizedError, ValidationError
from text_generation.types import Message

KEY = {"Authorization": f"Bearer {API_KEY}"}
STORY = "Once upon a time"
QUESTION = [Message("user", "What is 12 + 30?")]
# Ever the same token, so never an end: longer than any test.
ENDLESS = {"max_new_tokens": 900, "frequency_penalty": -2.0}


@pytest.fixture
def client(guarded: Server) -> Iterator[Client]:
    with Client(guarded.url, headers=KEY, timeout=60, max_retries=0) as client:
        yield client


def places(server: Server) -> int:
    """How many requests the server takes at once."""
    return server.client.get("/info").json()["max_concurrent_requests"]


def test_generate(client: Client, guarded: Server) -> None:
    said = guarded.generate(STORY, max_new_tokens=12, top_n_tokens=2, decoder_input_details=True)
    ours = client.generate(STORY, max_new_tokens=12, top_n_tokens=2, decoder_input_details=True)
    assert ours.generated_text == said["generated_text"]
    assert ours.details.finish_reason.value == said["details"]["finish_reason"]
    for name in ["prefill", "tokens"]:
        tokens = [(token.id, token.text) for token in getattr(ours.details, name)]
        assert tokens == [(token["id"], token["text"]) for token in said["details"][name]]
    assert [[token.id for token in top] for top in ours.details.top_tokens or []] == [
        [token["id"] for token in top] for top in said["details"]["top_tokens"]
    ]


def test_generate_stream(client: Client) -> None:
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.9, "seed": 3}
    whole = client.generate(STORY, **options)
    *events, last = client.generate_stream(STORY, **options)
    assert [event.token.id for event in [*events, last]] == [token.id for token in whole.details.tokens]
    assert all(event.details is None and event.generated_text is None for event in events)
    assert last.generated_text == whole.generated_text
    assert last.details is not None
    assert last.details.generated_tokens == 12


def test_chat(client: Client) -> None:
    reply = client.chat(QUESTION, temperature=0)
    assert reply.choices[0].message.content == "12 + 30 = 42."
    assert reply.choices[0].finish_reason == "stop"
    *chunks, usage = client.chat(QUESTION, temperature=0, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == reply.choices[0].message.content
    assert reply.usage is not None
    # All of the prompt but its last token was computed for the first chat.
    cached = {"cached_tokens": reply.usage["prompt_tokens"] - 1}
    assert usage.usage == {**reply.usage, "prompt_tokens_details": cached}


def test_completion(client: Client) -> None:
    said = client.generate(STORY, max_new_tokens=12).generated_text
    prompts = [STORY, STORY]
    assert [choice.text for choice in client.completion(prompts, max_tokens=12, temperature=0).choices] == [said, said]
    assert "".join(piece.text for piece in client.completion(STORY, max_tokens=12, temperature=0, stream=True)) == said


def test_a_wrong_key(guarded: Server) -> None:
    with Client(guarded.url, headers={"Authorization": "Bearer wrong"}) as client:
        for call in [lambda: client.generate(STORY), lambda: list(client.generate_stream(STORY))]:
            with pytest.raises(UnauthorizedError):
                call()
        with pytest.raises(UnauthorizedError):
            client.chat(QUESTION)


def test_a_wrong_parameter(client: Client) -> None:
    with pytest.raises(ValidationError, match="max_new_tokens") as error:
        client.generate(STORY, max_new_tokens=100_000)
    assert (error.value.status, error.value.error_type) == (422, "validation")
    with pytest.raises(ValidationError, match="max_new_tokens"):
        list(client.generate_stream(STORY, max_new_tokens=100_000))
    with pytest.raises(ValidationError, match="temperature"):
        client.chat(QUESTION, temperature=-1.0)


def test_a_full_server_and_a_stream_that_is_left(client: Client, guarded: Server) -> None:
    dropped = 'tgi_request_failure{err="dropped"}'
    before = guarded.metric(dropped)
    streams = [client.generate_stream(STORY, **ENDLESS) for _ in range(places(guarded))]
    for stream in streams:
        next(stream)
    with pytest.raises(OverloadedError) as error:
        client.generate(STORY)
    assert (error.value.status, error.value.retry_after) == (429, 1.0)
    streams[0].close()
    # The server gives the row and the place to others while the streams beside it still run.
    wait_for(lambda: guarded.metric("tgi_batch_current_size") == len(streams) - 1, "a row less")
    assert guarded.metric(dropped) == before + 1
    assert client.generate(STORY, max_new_tokens=2).details.generated_tokens == 2
    for stream in streams:
        stream.close()
    wait_for(lambda: guarded.metric("tgi_batch_current_size") == 0, "no row left")
    wait_for(lambda: guarded.metric("tgi_kv_slots_used") == 0, "no slot left")


def test_a_full_server_is_tried_again(guarded: Server) -> None:
    with Client(guarded.url, headers=KEY, timeout=60) as patient:
        streams = [patient.generate_stream(STORY, **ENDLESS) for _ in range(places(guarded))]
        for stream in streams:
            next(stream)
        for stream in streams:
            stream.close()
        # Whether the streams have been taken down already or not.
        assert patient.generate(STORY, max_new_tokens=2).details.generated_tokens == 2


def test_the_asynchronous_client(client: Client, guarded: Server) -> None:
    said = client.generate(STORY, max_new_tokens=12)

    async def ask() -> None:
        async with AsyncClient(guarded.url, headers=KEY, timeout=60) as other:
            replies = await asyncio.gather(*(other.generate(STORY, max_new_tokens=12) for _ in range(4)))
            assert [reply.generated_text for reply in replies] == 4 * [said.generated_text]
            ids = [event.token.id async for event in other.generate_stream(STORY, max_new_tokens=12)]
            assert ids == [token.id for token in said.details.tokens]
            assert (await other.chat(QUESTION, temperature=0)).choices[0].message.content == "12 + 30 = 42."
            with pytest.raises(ValidationError, match="max_new_tokens"):
                await other.generate(STORY, max_new_tokens=100_000)

    asyncio.run(ask())

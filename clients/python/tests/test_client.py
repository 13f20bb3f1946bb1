"""Both clients against a server on the loopback device: answers, true streaming, cancellation."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from stub import TEXT, TOKENS, USAGE, WAIT, Stub

from text_generation import AsyncClient, Client
from text_generation.errors import NotFoundError, ValidationError
from text_generation.types import FinishReason, Message, StreamResponse

PROMPT = "The capital of France is"
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, WAIT))


def check_stream(answers: list[StreamResponse]) -> None:
    assert [answer.token.text for answer in answers] == TOKENS
    assert [answer.generated_text for answer in answers] == [None, TEXT]
    details = answers[-1].details
    assert details is not None
    assert (details.finish_reason, details.generated_tokens, details.seed) == (FinishReason.Length, 2, None)
    assert details.input_length == 5


def test_generate_returns_the_text_and_its_tokens(stub: Stub) -> None:
    with Client(stub.url) as client:
        response = client.generate(PROMPT, max_new_tokens=2)
    assert response.generated_text == TEXT
    assert response.details.finish_reason == FinishReason.Length
    assert [(token.id, token.text, token.logprob, token.special) for token in response.details.tokens] == [
        (0, " Paris", -0.5, False),
        (1, ".", -0.5, False),
    ]
    assert dataclasses.asdict(response)["details"]["prefill"] == []


def test_async_generate_equals_generate(stub: Stub) -> None:
    async def main() -> Any:
        async with AsyncClient(stub.url) as client:
            return await client.generate(PROMPT)

    assert run(main()) == Client(stub.url).generate(PROMPT)
    assert stub.requests[0] == stub.requests[1]


def test_request_says_whether_to_sample_and_leaves_out_what_is_none(stub: Stub) -> None:
    Client(stub.url).generate(PROMPT, True, 7, None, 1.1, stop_sequences=["\n"], temperature=0.5)
    assert stub.requests == [
        {
            "path": "/",
            "inputs": PROMPT,
            "stream": False,
            "parameters": {
                "do_sample": True,
                "max_new_tokens": 7,
                "repetition_penalty": 1.1,
                "return_full_text": False,
                "stop": ["\n"],
                "temperature": 0.5,
                "watermark": False,
                "details": True,
                "decoder_input_details": False,
            },
        }
    ]


def test_one_text_to_stop_at_is_not_its_letters(stub: Stub) -> None:
    client = Client(stub.url)
    client.generate(PROMPT, stop_sequences="END")
    client.chat([{"role": "user", "content": "hi"}], stop="END")
    assert stub.requests[0]["parameters"]["stop"] == ["END"]
    assert stub.requests[1]["stop"] == ["END"]


def test_generate_stream_yields_a_token_before_the_next_one_exists(stub: Stub) -> None:
    stub.gate.clear()
    stream = Client(stub.url).generate_stream(PROMPT)
    first = next(stream)
    stub.gate.set()
    check_stream([first, *stream])


def test_async_generate_stream_yields_a_token_before_the_next_one_exists(stub: Stub) -> None:
    stub.gate.clear()

    async def main() -> list[StreamResponse]:
        async with AsyncClient(stub.url) as client:
            stream = client.generate_stream(PROMPT)
            first = await anext(stream)
            stub.gate.set()
            return [first, *[answer async for answer in stream]]

    check_stream(run(main()))


def test_closing_the_iterator_leaves_the_server(stub: Stub) -> None:
    stub.gate.clear()
    stream = Client(stub.url).generate_stream(PROMPT)
    next(stream)
    assert not stub.left.is_set()
    stream.close()
    assert stub.left.wait(WAIT)


def test_closing_the_asynchronous_iterator_leaves_the_server(stub: Stub) -> None:
    stub.gate.clear()

    async def main() -> None:
        client = AsyncClient(stub.url)
        async with aclosing(await client.chat([Message("user", PROMPT)], stream=True)) as stream:
            await anext(stream)
        assert await asyncio.to_thread(stub.left.wait, WAIT)

    run(main())


def test_cancelling_the_task_leaves_the_server(stub: Stub) -> None:
    stub.gate.clear()

    async def main() -> None:
        started = asyncio.Event()

        async def consume() -> None:
            async for _ in AsyncClient(stub.url).generate_stream(PROMPT):
                started.set()

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(stub.left.wait, WAIT)

    run(main())


async def collect(stream: AsyncIterator[T]) -> list[T]:
    return [item async for item in stream]


def test_more_streams_at_once_than_a_pool_of_httpx_has_by_default(stub: Stub) -> None:
    stub.gate.clear()

    async def main() -> list[list[StreamResponse]]:
        async with AsyncClient(stub.url) as client:
            streams = [client.generate_stream(PROMPT) for _ in range(120)]
            firsts = await asyncio.gather(*(anext(stream) for stream in streams))
            stub.gate.set()
            rests = await asyncio.gather(*(collect(stream) for stream in streams))
            return [[first, *rest] for first, rest in zip(firsts, rests, strict=True)]

    for answers in run(main()):
        check_stream(answers)


def test_async_client_works_in_one_event_loop_after_another(stub: Stub) -> None:
    client = AsyncClient(stub.url)
    for _ in range(2):
        assert run(client.generate(PROMPT)).generated_text == TEXT


def test_completion(stub: Stub) -> None:
    completion = Client(stub.url).completion([PROMPT, PROMPT], max_tokens=2)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in completion.choices] == [
        (0, TEXT, "length"),
        (1, TEXT, "length"),
    ]
    assert completion.usage == USAGE
    body = {"model": "tgi", "prompt": [PROMPT, PROMPT], "max_tokens": 2, "stream": False}
    assert stub.requests == [{"path": "/v1/completions", **body}]


def test_token_healing_is_asked_for_where_it_is_wanted(stub: Stub) -> None:
    client = Client(stub.url)
    client.generate(PROMPT, token_healing=True)
    list(client.generate_stream(PROMPT, token_healing=True))
    client.completion(PROMPT, token_healing=True)
    sent = [request.get("parameters", request) for request in stub.requests]
    assert [parameters["token_healing"] for parameters in sent] == [True, True, True]


def test_a_search_is_asked_for_in_the_words_of_each_api(stub: Stub) -> None:
    client = Client(stub.url)
    client.generate(PROMPT, beam_width=3, length_penalty=0.5, early_stopping="never")
    client.completion(PROMPT, n=2, best_of=3, use_beam_search=True, early_stopping=True)
    client.chat([Message("user", PROMPT)], n=2, use_beam_search=True, length_penalty=2.0)
    client.generate(PROMPT)
    generate, completion, chat, plain = (request.get("parameters", request) for request in stub.requests)
    assert (generate["beam_width"], generate["length_penalty"], generate["early_stopping"]) == (3, 0.5, "never")
    assert (completion["n"], completion["best_of"], completion["use_beam_search"]) == (2, 3, True)
    assert completion["early_stopping"] is True
    assert (chat["n"], chat["use_beam_search"], chat["length_penalty"]) == (2, True, 2.0)
    assert not {"beam_width", "length_penalty", "early_stopping"} & set(plain)


def test_scores_are_in_the_order_of_the_choices(stub: Stub) -> None:
    client = Client(stub.url)
    scores = client.score(PROMPT, [" Paris", " Rome"])
    assert [(each.index, each.score, each.mean_logprob, each.tokens) for each in scores.data] == [
        (0, -0.5, -0.25, 2),
        (1, -1.5, -0.75, 2),
    ]
    client.score((1, 2), [(3, 4)])
    assert [(sent["path"], sent["prompt"], sent["choices"]) for sent in stub.requests] == [
        ("/v1/score", PROMPT, [" Paris", " Rome"]),
        ("/v1/score", [1, 2], [[3, 4]]),
    ]


def test_classes_are_in_the_order_of_the_texts(stub: Stub) -> None:
    client = Client(stub.url)
    classes = client.classify(["What a day!", "Never again."])
    assert [(each.index, each.label, each.probs, each.num_classes) for each in classes.data] == [
        (0, "positive", [0.25, 0.75], 2),
        (1, "negative", [0.25, 0.75], 2),
    ]
    messages = [{"role": "user", "content": "Hi"}]
    client.classify(messages=messages, use_activation=False, truncate_prompt_tokens=-1)
    first, second = stub.requests
    assert (first["path"], first["input"]) == ("/v1/classify", ["What a day!", "Never again."])
    assert "messages" not in first
    assert "use_activation" not in first
    assert (second["messages"], second["use_activation"], second["truncate_prompt_tokens"]) == (messages, False, -1)
    assert "input" not in second


def test_completion_stream(stub: Stub) -> None:
    async def main() -> list[Any]:
        async with AsyncClient(stub.url) as client:
            return [piece async for piece in await client.completion(PROMPT, stream=True)]

    pieces = list(Client(stub.url).completion(PROMPT, stream=True))
    assert [piece.text for piece in pieces] == TOKENS
    assert pieces[-1].finish_reason == "length"
    assert run(main()) == pieces


def test_chat_takes_messages_and_dictionaries(stub: Stub) -> None:
    messages = [Message("system", "Be short."), {"role": "user", "content": PROMPT}]
    answer = Client(stub.url).chat(messages, max_tokens=2)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage == USAGE
    assert stub.requests[0]["path"] == "/v1/chat/completions"
    assert stub.requests[0]["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": PROMPT},
    ]


def test_a_chat_says_what_its_answer_may_be(stub: Stub) -> None:
    client = Client(stub.url)
    client.chat([Message("user", PROMPT)], prediction="class A:")
    client.chat([Message("user", PROMPT)])
    assert stub.requests[0]["prediction"] == {"type": "content", "content": "class A:"}
    assert "prediction" not in stub.requests[1]


def test_chat_stream_ends_with_done_and_carries_usage(stub: Stub) -> None:
    options = {"include_usage": True}
    chunks = list(Client(stub.url).chat([Message("user", PROMPT)], stream=True, stream_options=options))
    assert [choice.delta.content for chunk in chunks for choice in chunk.choices] == TOKENS
    assert chunks[-1].choices == []
    assert chunks[-1].usage == USAGE
    assert stub.requests[0]["stream_options"] == options


def test_async_chat(stub: Stub) -> None:
    async def main() -> tuple[Any, str]:
        async with AsyncClient(stub.url) as client:
            answer = await client.chat([Message("user", PROMPT)])
            chunks = [chunk async for chunk in await client.chat([Message("user", PROMPT)], stream=True)]
            return answer, "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    answer, text = run(main())
    assert answer.choices[0].message.content == text == TEXT


def test_refusals_are_typed_with_and_without_a_stream(stub: Stub) -> None:
    client, lost = Client(stub.url), Client(f"{stub.url}/nowhere")
    with pytest.raises(ValidationError, match="too long") as refused:
        client.generate(PROMPT, max_new_tokens=10_000)
    assert (refused.value.status, refused.value.error_type) == (422, "validation")
    with pytest.raises(ValidationError, match="too long"):
        list(client.generate_stream(PROMPT, max_new_tokens=10_000))
    with pytest.raises(NotFoundError):
        lost.generate(PROMPT)
    with pytest.raises(NotFoundError):
        list(lost.generate_stream(PROMPT))


def test_async_refusals_are_typed_with_and_without_a_stream(stub: Stub) -> None:
    async def main() -> None:
        client, lost = AsyncClient(stub.url), AsyncClient(f"{stub.url}/nowhere")
        with pytest.raises(ValidationError, match="too long"):
            await client.generate(PROMPT, max_new_tokens=10_000)
        with pytest.raises(ValidationError, match="too long"):
            [answer async for answer in client.generate_stream(PROMPT, max_new_tokens=10_000)]
        with pytest.raises(NotFoundError):
            await lost.generate(PROMPT)
        with pytest.raises(NotFoundError):
            [answer async for answer in lost.generate_stream(PROMPT)]

    run(main())


def test_a_wrong_stream_request_is_refused_before_it_is_iterated() -> None:
    with pytest.raises(ValidationError, match="temperature"):
        Client("http://127.0.0.1:1").generate_stream(PROMPT, temperature=0)


@pytest.mark.parametrize("url", ["", "127.0.0.1:3000", "ftp://host", "http://", "http://host:port", "http://a..b"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_wrong_address_is_refused_at_once(client: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        client(url)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_timeout_that_no_clock_can_keep_is_refused(client: type[Client] | type[AsyncClient], timeout: float) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        client("http://x", timeout=timeout)


@pytest.mark.parametrize("name", ["generate", "generate_stream", "models", "completion", "chat", "run_tools"])
def test_both_clients_have_the_same_signatures(name: str) -> None:
    sync, asynchronous = getattr(Client("http://x"), name), getattr(AsyncClient("http://x"), name)
    assert inspect.signature(sync).parameters == inspect.signature(asynchronous).parameters
    assert inspect.iscoroutinefunction(asynchronous) == (name != "generate_stream")

"""`InferenceClient` and `AsyncInferenceClient` of huggingface_hub."""

from __future__ import annotations

import asyncio
import re

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import (
    HfHubHTTPError,
    OverloadedError,
    TextGenerationError,
    ValidationError,
)

SAMPLED = {"do_sample": True, "temperature": 0.9, "seed": 3, "max_new_tokens": 12}


@pytest.fixture
def client(api):
    with InferenceClient(api.url, token=api.key) as client:
        yield client


def test_a_text(client, api, story):
    said = api.generate(story, max_new_tokens=16)["generated_text"]
    assert client.text_generation(story, max_new_tokens=16, return_full_text=False) == said
    assert client.text_generation(story, max_new_tokens=16, return_full_text=True) == story + said


def test_a_text_with_details(client, api, story):
    options = {"decoder_input_details": True, "top_n_tokens": 2, **SAMPLED}
    reply = client.text_generation(story, details=True, return_full_text=False, **options)
    said = api.generate(story, **options)
    assert reply.generated_text == said["generated_text"]
    assert reply.details.finish_reason == said["details"]["finish_reason"]
    assert reply.details.seed == said["details"]["seed"]
    assert reply.details.generated_tokens == said["details"]["generated_tokens"] == 12
    for ours, theirs in [
        (reply.details.tokens, said["details"]["tokens"]),
        (reply.details.prefill, said["details"]["prefill"]),
    ]:
        assert [(token.id, token.text) for token in ours] == [(token["id"], token["text"]) for token in theirs]
    assert [token.logprob for token in reply.details.tokens] == pytest.approx(
        [token["logprob"] for token in said["details"]["tokens"]], abs=1e-4
    )
    assert [len(top) for top in reply.details.top_tokens] == 12 * [2]


def test_the_best_of_two(client, api, story):
    reply = client.text_generation(story, details=True, best_of=2, do_sample=True, max_new_tokens=12)
    samples = [reply.details, *reply.details.best_of_sequences]
    assert len({sample.seed for sample in samples}) == 2
    for sample in samples:
        alone = api.generate(story, do_sample=True, max_new_tokens=12, seed=sample.seed)["details"]
        assert [token.id for token in sample.tokens] == [token["id"] for token in alone["tokens"]]


def test_a_stream(client, api, story):
    said = api.generate(story, **SAMPLED)
    texts = list(client.text_generation(story, stream=True, **SAMPLED))
    assert texts == [token["text"] for token in said["details"]["tokens"]]
    *events, last = client.text_generation(story, stream=True, details=True, return_full_text=False, **SAMPLED)
    assert [event.token.id for event in [*events, last]] == [token["id"] for token in said["details"]["tokens"]]
    assert all(event.details is None and event.generated_text is None for event in events)
    assert last.generated_text == said["generated_text"]
    assert last.details.finish_reason == "length"
    assert last.details.generated_tokens == 12
    assert last.details.input_length > 0


def test_every_parameter_of_a_text(client, api, story):
    options = {
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "stop": ["."],
        "top_k": 20,
        "top_p": 0.9,
        "truncate": 2,
        "typical_p": 0.9,
        "watermark": True,
        **SAMPLED,
    }
    said = api.generate(story, **options)["generated_text"]
    assert client.text_generation(story, return_full_text=False, **options) == said
    # Not there, so not ignored.
    with pytest.raises(ValidationError, match="adapter_id"):
        client.text_generation(story, adapter_id="other")


def test_a_grammar(client, story):
    regex = {"type": "regex", "value": "[0-9]{4}"}
    year = client.text_generation(story, grammar=regex, max_new_tokens=20, return_full_text=False)
    assert re.fullmatch("[0-9]{4}", year)


def test_a_chat(client, api, question, answer):
    reply = client.chat_completion(question, temperature=0, logprobs=True, top_logprobs=2)
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == answer
    assert choice.finish_reason == "stop"
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    said = api.chat(question, temperature=0)["usage"]
    assert reply.usage.prompt_tokens == said["prompt_tokens"]
    assert reply.usage.completion_tokens == said["completion_tokens"]
    assert reply.id
    again = client.chat.completions.create(model="demo", messages=question, temperature=0)
    assert again.choices[0].message.content == answer
    assert again.model == "demo"


def test_a_second_turn(client, question, second):
    first = client.chat_completion(question, temperature=0)
    reply = client.chat_completion([*question, first.choices[0].message, second.message], temperature=0)
    assert (reply.choices[0].message.content, reply.usage.prompt_tokens) == (second.answer, second.prompt_tokens)


def test_every_parameter_of_a_chat(client, api, question):
    options = {
        "frequency_penalty": 0.5,
        "logit_bias": {"40": -5.0},
        "max_tokens": 12,
        "presence_penalty": 0.5,
        "seed": 4,
        "stop": ["!"],
        "temperature": 0.9,
        "top_p": 0.9,
    }
    said = api.chat(question, **options)["choices"][0]["message"]["content"]
    assert client.chat_completion(question, **options).choices[0].message.content == said
    choices = client.chat_completion(question, n=2, **options).choices
    assert [choice.index for choice in choices] == [0, 1]
    assert choices[0].message.content == said


def test_a_streamed_chat(client, question, answer):
    *chunks, usage = client.chat_completion(
        question, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert usage.choices == []
    assert usage.usage.total_tokens == usage.usage.prompt_tokens + usage.usage.completion_tokens


def test_what_the_server_is(api):
    # The client asks only servers of this provider, which it takes a URL for in all other methods.
    with InferenceClient(api.url, provider="hf-inference", token=api.key) as client:
        assert client.get_endpoint_info() == api.info()
        assert client.health_check() is True


def test_a_wrong_parameter(client, story, question):
    message = "`temperature` must be strictly positive"
    with pytest.raises(ValidationError, match=message):
        client.text_generation(story, temperature=0.0)
    with pytest.raises(ValidationError, match=message):
        list(client.text_generation(story, temperature=0.0, stream=True))
    with pytest.raises(ValidationError, match="max_new_tokens"):
        client.text_generation(story, max_new_tokens=100_000)
    with pytest.raises(HfHubHTTPError, match="`temperature` must be >= 0") as error:
        client.chat_completion(question, temperature=-1)
    assert error.value.response.status_code == 422
    assert error.value.request_id == error.value.response.headers["x-request-id"]


def test_a_wrong_key(api, story, question):
    with InferenceClient(api.url, token="wrong") as client:
        with pytest.raises(HfHubHTTPError) as error:
            client.chat_completion(question)
        assert error.value.response.status_code == 401
        with pytest.raises((HfHubHTTPError, TextGenerationError)):
            client.text_generation(story)


def test_a_full_server(client, story, question, answer, full):
    with full():
        with pytest.raises(OverloadedError, match="overloaded"):
            client.text_generation(story)
        with pytest.raises(OverloadedError):
            list(client.text_generation(story, stream=True))
        with pytest.raises(HfHubHTTPError) as error:
            client.chat_completion(question)
        assert error.value.response.status_code == 429
        assert error.value.response.headers["retry-after"] == "1"
    assert client.chat_completion(question, temperature=0).choices[0].message.content == answer


def test_the_asynchronous_client(api, story, question, answer):
    said = api.generate(story, **SAMPLED)

    async def ask() -> None:
        async with AsyncInferenceClient(api.url, token=api.key) as client:
            texts = await asyncio.gather(
                *(client.text_generation(story, return_full_text=False, **SAMPLED) for _ in range(4))
            )
            assert texts == 4 * [said["generated_text"]]
            stream = await client.text_generation(story, stream=True, details=True, **SAMPLED)
            assert [event.token.id async for event in stream] == [token["id"] for token in said["details"]["tokens"]]
            reply = await client.chat_completion(question, temperature=0)
            assert reply.choices[0].message.content == answer
            chunks = await client.chat_completion(question, temperature=0, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == answer
            with pytest.raises(ValidationError, match="temperature"):
                await client.text_generation(story, temperature=0.0)

    asyncio.run(ask())


def test_the_asynchronous_client_of_a_full_server(api, story, full):
    async def ask() -> None:
        async with AsyncInferenceClient(api.url, token=api.key) as client:
            with pytest.raises(OverloadedError):
                await client.text_generation(story)

    with full():
        asyncio.run(ask())

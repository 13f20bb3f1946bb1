"""litellm, with its provider for servers like OpenAI's and the one for TGI and other servers of Hugging Face."""

from __future__ import annotations

import asyncio
import os

import pytest

# Else importing it downloads a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
import openai

PROVIDERS = ["openai", "huggingface"]


@pytest.fixture(params=PROVIDERS)
def server(api, request):
    """Arguments that lead to the server by one provider, with temperature 0."""
    # The base URL of OpenAI's API has the `v1`, the address of a TGI has not.
    base = api.v1 if request.param == "openai" else api.url
    options = {"api_base": base, "api_key": api.key, "temperature": 0, "num_retries": 0, "max_retries": 0}
    return {"model": f"{request.param}/demo", **options}


@pytest.fixture
def openai_server(api):
    return {"model": "openai/demo", "api_base": api.v1, "api_key": api.key, "max_retries": 0}


def test_a_chat(server, api, question, answer):
    reply = litellm.completion(messages=question, **server)
    assert reply.choices[0].message.content == answer
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == api.chat(question, temperature=0)["usage"]["completion_tokens"]


def test_a_second_turn(server, question, second):
    first = litellm.completion(messages=question, **server)
    reply = litellm.completion(messages=[*question, first.choices[0].message, second.message], **server)
    assert (reply.choices[0].message.content, reply.usage.prompt_tokens) == (second.answer, second.prompt_tokens)


def test_a_streamed_chat(server, question, answer):
    options = {"include_usage": True}
    chunks = list(litellm.completion(messages=question, stream=True, stream_options=options, **server))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == answer
    whole = litellm.stream_chunk_builder(chunks, messages=question)
    assert whole.choices[0].message.content == answer
    assert whole.usage.completion_tokens > 0


def test_sampled_choices(server, api, question):
    options = {"temperature": 0.9, "seed": 5, "n": 2, "max_tokens": 12, "stop": ["!"]}
    reply = litellm.completion(messages=question, **{**server, **options})
    said = api.chat(question, **options)["choices"]
    assert [choice.message.content for choice in reply.choices] == [choice["message"]["content"] for choice in said]


def test_a_completion(openai_server, api, story):
    server = {**openai_server, "model": "text-completion-openai/demo", "temperature": 0, "max_tokens": 12}
    said = api.generate(story, max_new_tokens=12)["generated_text"]
    assert litellm.text_completion(prompt=story, **server).choices[0].text == said
    chunks = litellm.text_completion(prompt=story, stream=True, **server)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == said


def test_a_full_context_is_known_as_one(openai_server):
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=long, **openai_server)


def test_errors(server, question):
    with pytest.raises(openai.APIError, match="`temperature` must be >= 0") as error:
        litellm.completion(messages=question, **{**server, "temperature": -1})
    assert error.value.status_code == 422
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=question, **{**server, "api_key": "wrong"})


def test_a_full_server(server, question, answer, full):
    with full() as release:
        with pytest.raises(litellm.RateLimitError):
            litellm.completion(messages=question, **server)
        release()
        reply = litellm.completion(messages=question, **{**server, "num_retries": 5, "max_retries": 5})
        assert reply.choices[0].message.content == answer


def test_asynchronously(server, question, answer):
    async def ask() -> None:
        reply = await litellm.acompletion(messages=question, **server)
        assert reply.choices[0].message.content == answer
        stream = await litellm.acompletion(messages=question, stream=True, **server)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == answer

    asyncio.run(ask())

"""The SDK of OpenAI, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

SAMPLED = {"temperature": 0.9, "max_tokens": 12}


@pytest.fixture
def client(api):
    with openai.OpenAI(base_url=api.v1, api_key=api.key, max_retries=0) as client:
        yield client


def test_a_chat(client, question, answer):
    reply = client.chat.completions.create(model="demo", messages=question, temperature=0)
    assert reply.choices[0].message.content == answer
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model == "demo"


def test_a_second_turn(client, question, second):
    first = client.chat.completions.create(model="demo", messages=question, temperature=0)
    turns = [*question, first.choices[0].message, second.message]
    reply = client.chat.completions.create(model="demo", messages=turns, temperature=0)
    assert (reply.choices[0].message.content, reply.usage.prompt_tokens) == (second.answer, second.prompt_tokens)


def test_messages_of_every_role(client):
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city"}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"temperature": 21, "weather": "sunny"}'},
    ]
    reply = client.chat.completions.create(
        model="demo", messages=messages, tools=[tool], tool_choice="none", temperature=0
    )
    assert reply.choices[0].message.content == "It is sunny in Paris, with 21 degrees."


def test_log_probabilities_of_a_chat(client, question, answer):
    options = {"temperature": 0, "logprobs": True, "top_logprobs": 2}
    tokens = client.chat.completions.create(model="demo", messages=question, **options).choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).startswith(answer.encode())
    assert all(token.logprob == token.top_logprobs[0].logprob and len(token.top_logprobs) == 2 for token in tokens)


def test_a_streamed_chat(client, question, answer):
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="demo", messages=question, temperature=0, stream=True, stream_options=options
        )
    )
    *answers, usage = chunks
    assert answers[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in answers) == answer
    assert answers[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in answers)
    assert usage.choices == []
    assert usage.usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_helper_of_streams(client, question, answer):
    kinds = []
    with client.chat.completions.stream(model="demo", messages=question, temperature=0) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == answer
    assert kinds.count("content.delta") > 1
    assert "content.done" in kinds


def test_choices_of_a_streamed_chat(client, question):
    request = {"model": "demo", "messages": question, "n": 3, "seed": 7, **SAMPLED}
    whole = client.chat.completions.create(**request)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_a_completion(client, api, story):
    reply = client.completions.create(model="demo", prompt=story, max_tokens=8, temperature=0)
    assert reply.choices[0].text == api.generate(story, max_new_tokens=8)["generated_text"]
    assert reply.choices[0].finish_reason == "length"


def test_stop_strings(client, question, answer):
    reply = client.chat.completions.create(model="demo", messages=question, temperature=0, stop=[" = "])
    assert reply.choices[0].message.content == answer.split(" = ")[0]
    assert reply.choices[0].finish_reason == "stop"


def test_several_prompts_with_several_choices(client, story):
    prompts = [story, "The cat sat"]
    reply = client.completions.create(model="demo", prompt=prompts, n=2, seed=5, echo=True, **SAMPLED)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert all(choice.text.startswith(prompts[choice.index // 2]) for choice in reply.choices)
    streamed = ["", "", "", ""]
    for chunk in client.completions.create(
        model="demo", prompt=prompts, n=2, seed=5, echo=True, stream=True, **SAMPLED
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in reply.choices]


def test_prompts_of_token_ids(client, api, story):
    with api.open("/tokenize", inputs=story) as reply:
        tokens = [token["id"] for token in json.load(reply)]
    by_text = client.completions.create(model="demo", prompt=story, max_tokens=8, temperature=0)
    by_id = client.completions.create(model="demo", prompt=[tokens, tokens], max_tokens=8, temperature=0)
    assert [choice.text for choice in by_id.choices] == 2 * [by_text.choices[0].text]


def test_log_probabilities_of_a_completion(client, story):
    reply = client.completions.create(model="demo", prompt=story, max_tokens=4, temperature=0, logprobs=2, echo=True)
    logprobs = reply.choices[0].logprobs
    assert "".join(logprobs.tokens) == reply.choices[0].text
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    ends = [offset + len(token) for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)]
    assert ends == [*logprobs.text_offset[1:], len(reply.choices[0].text)]
    assert all(len(top) == 2 for top in logprobs.top_logprobs[-4:])


def test_fields_that_openai_does_not_have(client, story):
    reply = client.completions.create(
        model="demo", prompt=story, max_tokens=6, extra_body={"ignore_eos": True, "top_k": 1}
    )
    assert reply.usage.completion_tokens == 6


def test_models(client):
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("another/model")
    assert error.value.code == "model_not_found"


def test_a_wrong_field(client, question):
    with pytest.raises(openai.UnprocessableEntityError, match="`temperature` must be >= 0") as error:
        client.chat.completions.create(model="demo", messages=question, temperature=-1)
    assert error.value.param == "temperature"
    assert error.value.type == "invalid_request_error"
    assert error.value.request_id == error.value.response.headers["x-request-id"]
    # Refused before the first token, so a stream has the same status.
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        client.chat.completions.create(model="demo", messages=question, temperature=-1, stream=True)


def test_a_prompt_that_is_too_long(client):
    with pytest.raises(openai.BadRequestError, match="This model's maximum context length is") as error:
        client.completions.create(model="demo", prompt="word " * 2000)
    assert error.value.code == "context_length_exceeded"


def test_a_wrong_key(client):
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_a_full_server_is_tried_again(client, question, answer, full):
    request = {"model": "demo", "messages": question, "temperature": 0}
    with full() as release:
        with pytest.raises(openai.RateLimitError) as error:
            client.chat.completions.create(**request)
        assert error.value.response.headers["retry-after"] == "1"
        release()
        patient = client.with_options(max_retries=5)
        assert patient.chat.completions.create(**request).choices[0].message.content == answer


def test_the_asynchronous_client(api, question, answer, story):
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=api.v1, api_key=api.key, max_retries=0) as client:
            request = {"model": "demo", "messages": question, "temperature": 0}
            replies = await asyncio.gather(*(client.chat.completions.create(**request) for _ in range(4)))
            assert [reply.choices[0].message.content for reply in replies] == 4 * [answer]
            stream = await client.chat.completions.create(**request, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == answer
            async with client.chat.completions.stream(**request) as helper:
                assert (await helper.get_final_completion()).choices[0].message.content == answer
            completion = await client.completions.create(model="demo", prompt=story, max_tokens=4)
            assert completion.usage.completion_tokens == 4
            with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
                await client.chat.completions.create(**{**request, "temperature": -1})

    asyncio.run(ask())

"""The SDK of Anthropic: `/v1/messages` with everything that its helpers make of it."""

from __future__ import annotations

import asyncio

import anthropic
import pytest
from pydantic import BaseModel

# The SDK has no word for the temperature any more.
SHORT = {"model": "demo", "max_tokens": 100, "extra_body": {"temperature": 0}}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(api):
    with anthropic.Anthropic(base_url=api.url, api_key=api.key, max_retries=0) as client:
        yield client


@pytest.fixture
def add(add_schema):
    return {"name": "add", "description": "Add two numbers", "input_schema": add_schema}


def said(text):
    return [{"role": "user", "content": text}]


def test_a_message(client, question, answer):
    reply = client.messages.create(messages=question, **SHORT)
    assert (reply.role, reply.type, reply.model) == ("assistant", "message", "demo")
    assert [block.text for block in reply.content] == [answer]
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert reply.usage.output_tokens > 0


def test_a_system_prompt_and_the_prefix_that_the_next_turn_finds(client):
    system = [{"type": "text", "text": "Be brief and kind. " * 8, "cache_control": {"type": "ephemeral"}}]
    messages = said("Hello!")
    first = client.messages.create(system=system, messages=messages, **SHORT)
    messages += [{"role": "assistant", "content": first.content}, *said("What is 12 + 30?")]
    second = client.messages.create(system=system, messages=messages, **SHORT)
    before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
    assert second.usage.cache_read_input_tokens >= before
    tokens = client.messages.count_tokens(model="demo", system=system, messages=messages).input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == tokens


def test_a_second_turn(client, question, second):
    first = client.messages.create(messages=question, **SHORT)
    turns = [*question, {"role": "assistant", "content": first.content}, second.message]
    assert client.messages.create(messages=turns, **SHORT).content[0].text == second.answer
    assert client.messages.count_tokens(model="demo", messages=turns).input_tokens == second.prompt_tokens


def test_a_call_that_was_cut_goes_back(client, add, sum_question):
    whole = client.messages.create(messages=said(sum_question), tools=[add], **SHORT)
    short = {**SHORT, "max_tokens": whole.usage.output_tokens - 8}
    cut = client.messages.create(messages=said(sum_question), tools=[add], **short)
    (use,) = [block for block in cut.content if block.type == "tool_use"]
    assert (cut.stop_reason, list(use.input)) == ("max_tokens", ["INVALID_JSON"])
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "The call was cut.", "is_error": True}
    turns = [*said(sum_question), {"role": "assistant", "content": cut.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=turns, tools=[add], **SHORT).content


def test_ends(client, question, answer):
    stopped = client.messages.create(messages=question, stop_sequences=[" = "], **SHORT)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " = ")
    assert stopped.content[0].text == answer.split(" = ")[0]
    cut = client.messages.create(messages=question, **{**SHORT, "max_tokens": 2})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    # Agents ask for as much as the largest models give, which the SDK lets them do in streams only.
    with client.messages.stream(messages=question, **{**SHORT, "max_tokens": 64000}) as stream:
        assert stream.get_final_text() == answer
    begun = client.messages.create(messages=[*question, {"role": "assistant", "content": "12 + 30 ="}], **SHORT)
    assert begun.content[0].text == " 42."


def test_a_stream(client, question, answer):
    with client.messages.stream(messages=question, **SHORT) as stream:
        events = list(stream)
        message = stream.get_final_message()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("text") > 1
    assert "".join(event.text for event in events if event.type == "text") == answer
    assert [block.text for block in message.content] == [answer]
    assert message.stop_reason == "end_turn"
    raw = list(client.messages.create(messages=question, stream=True, **SHORT))
    assert [event.delta.text for event in raw if event.type == "content_block_delta"] != [answer]
    assert raw[0].message.usage.input_tokens + (raw[0].message.usage.cache_read_input_tokens or 0) > 0


def test_a_tool_is_called_and_its_result_read(client, add, sum_question, sum_answer):
    messages = said(sum_question)
    call = client.messages.create(messages=messages, tools=[add], **SHORT)
    (use,) = [block for block in call.content if block.type == "tool_use"]
    assert (call.stop_reason, use.name, use.input) == ("tool_use", "add", {"a": 345, "b": 222})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "567"}]}
    messages += [{"role": "assistant", "content": call.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=messages, tools=[add], **SHORT).content[0].text == sum_answer


def test_a_streamed_call(client, add, sum_question):
    with client.messages.stream(messages=said(sum_question), tools=[add], **SHORT) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert len(pieces) > 1
    assert message.stop_reason == "tool_use"
    assert message.content[-1].input == {"a": 345, "b": 222}


def test_the_choice_of_tools(client, add, question, answer):
    weather = {
        "name": "get_weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }

    def ask(**choice):
        return client.messages.create(messages=question, tools=[add, weather], tool_choice=choice, **SHORT)

    assert ask(type="tool", name="get_weather").content[0].name == "get_weather"
    assert ask(type="any", disable_parallel_tool_use=True).content[0].input == {"a": 12, "b": 30}
    assert ask(type="none").content[0].text == answer


def test_the_runner_of_tools(client, sum_question, sum_answer):
    seen = []

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Add two numbers"""
        seen.append((a, b))
        return str(a + b)

    runner = client.beta.messages.tool_runner(messages=said(sum_question), tools=[add], **SHORT)
    assert runner.until_done().content[0].text == sum_answer
    assert seen == [(345, 222)]


def test_a_schema_is_parsed(client, facts):
    reply = client.messages.parse(messages=said(facts), output_format=Person, **SHORT)
    assert reply.parsed_output == Person(name="Adam", age=7)


def test_thinking_changes_nothing_for_a_model_that_does_not_think(client, question, answer):
    request = {"messages": question, "model": "demo", "max_tokens": 2000}
    reply = client.messages.create(thinking={"type": "enabled", "budget_tokens": 1024}, **request)
    assert [block.type for block in reply.content] == ["text"]
    thought = {"type": "thinking", "thinking": "Twelve and thirty.", "signature": ""}
    history = [*question, {"role": "assistant", "content": [thought, {"type": "text", "text": answer}]}]
    again = client.messages.create(messages=[*history, *question], **SHORT)
    assert again.content[0].text == answer


def test_tokens_are_counted(client, add, question):
    plain = client.messages.count_tokens(model="demo", messages=question).input_tokens
    reply = client.messages.create(messages=question, **SHORT)
    assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) == plain
    assert client.messages.count_tokens(model="demo", messages=question, tools=[add]).input_tokens > plain


def test_models(client):
    (model,) = client.models.list().data
    assert (model.type, model.display_name) == ("model", model.id)
    assert model.created_at.year >= 2025
    assert client.models.retrieve(model.id) == model


def test_errors(client, question, full):
    with pytest.raises(anthropic.BadRequestError, match="`temperature` must be >= 0") as error:
        client.messages.create(messages=question, **{**SHORT, "extra_body": {"temperature": -1}})
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert error.value.request_id == error.value.response.headers["request-id"]
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(messages=said([image]), **SHORT)
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(messages=said("word " * 2000), **SHORT)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(messages=question, **SHORT)
    with full(), pytest.raises(anthropic.RateLimitError):
        client.messages.create(messages=question, **SHORT)


def test_the_asynchronous_client(api, question, answer):
    async def ask() -> None:
        async with anthropic.AsyncAnthropic(base_url=api.url, api_key=api.key, max_retries=0) as client:
            replies = await asyncio.gather(*(client.messages.create(messages=question, **SHORT) for _ in range(4)))
            assert [reply.content[0].text for reply in replies] == 4 * [answer]
            async with client.messages.stream(messages=question, **SHORT) as stream:
                assert "".join([text async for text in stream.text_stream]) == answer

    asyncio.run(ask())

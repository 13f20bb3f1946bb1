"""The SDK of OpenAI: tools and structured output in chats, and the Responses API."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

CHAT = {"model": "demo", "temperature": 0, "max_tokens": 100}
RESPONSE = {"model": "demo", "temperature": 0, "max_output_tokens": 100}


class Person(BaseModel):
    name: str
    age: int


class Add(BaseModel):
    """Add two numbers"""

    a: int
    b: int


@pytest.fixture
def client(api):
    with openai.OpenAI(base_url=api.v1, api_key=api.key, max_retries=0) as client:
        yield client


@pytest.fixture
def add(add_schema):
    """The tool as the Responses API has it."""
    return {"type": "function", "name": "add", "description": "Add two numbers", "parameters": add_schema}


@pytest.fixture
def chat_add(add_schema):
    """The tool as chats have it."""
    function = {"name": "add", "description": "Add two numbers", "parameters": add_schema}
    return {"type": "function", "function": function}


def said(text):
    return [{"role": "user", "content": text}]


# --- chats ---


def test_a_loop_of_calls(client, chat_add, sum_question, sum_answer):
    messages = said(sum_question)
    called = []
    while (
        choice := client.chat.completions.create(messages=messages, tools=[chat_add], **CHAT).choices[0]
    ).message.tool_calls:
        assert choice.finish_reason == "tool_calls"
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            called.append((call.function.name, arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(sum(arguments.values()))})
    assert called == [("add", {"a": 345, "b": 222})]
    assert choice.message.content == sum_answer


def test_the_helper_of_streams_joins_a_call(client, chat_add, sum_question):
    whole = client.chat.completions.create(messages=said(sum_question), tools=[chat_add], **CHAT).choices[0].message
    with client.chat.completions.stream(messages=said(sum_question), tools=[chat_add], **CHAT) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert "tool_calls.function.arguments.done" in kinds
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == whole.tool_calls[0].function.arguments


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_must_be(client, chat_add, choice):
    reply = client.chat.completions.create(messages=said("Hello!"), tools=[chat_add], tool_choice=choice, **CHAT)
    (call,) = reply.choices[0].message.tool_calls
    Add.model_validate_json(call.function.arguments)


def test_answers_are_parsed(client, facts):
    reply = client.chat.completions.parse(messages=said(facts), response_format=Person, **CHAT)
    assert reply.choices[0].message.parsed == Person(name="Adam", age=7)
    with client.chat.completions.stream(messages=said(facts), response_format=Person, **CHAT) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Adam", age=7)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=said(facts), response_format=Person, **{**CHAT, "max_tokens": 3})


def test_calls_are_parsed(client, sum_question):
    tool = openai.pydantic_function_tool(Add, name="add")
    reply = client.chat.completions.parse(messages=said(sum_question), tools=[tool], **CHAT)
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Add(a=345, b=222)


def test_a_strict_schema_that_cannot_be_enforced(client, question):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": schema, "strict": True}}
    with pytest.raises(openai.UnprocessableEntityError, match="uniqueItems"):
        client.chat.completions.create(messages=question, response_format=form, **CHAT)


# --- responses ---


def test_a_response(client, question, answer):
    for given in (question, question[0]["content"]):
        reply = client.responses.create(input=given, **RESPONSE)
        assert (reply.output_text, reply.status, reply.store) == (answer, "completed", True)
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert reply.usage.input_tokens_details.cached_tokens > 0
    cut = client.responses.create(input=question, **{**RESPONSE, "max_output_tokens": 2})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_second_turn_of_responses(client, question, second):
    first = client.responses.create(input=question, **RESPONSE)
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    for output in (first.output, references):
        reply = client.responses.create(input=[*question, *output, second.message], **RESPONSE)
        assert (reply.output_text, reply.usage.input_tokens) == (second.answer, second.prompt_tokens)


def test_a_call_that_was_cut_goes_back(client, add, chat_add, sum_question):
    whole = client.chat.completions.create(messages=said(sum_question), tools=[chat_add], **CHAT)
    cut = whole.usage.completion_tokens - 8
    chat = client.chat.completions.create(messages=said(sum_question), tools=[chat_add], **{**CHAT, "max_tokens": cut})
    (call,) = chat.choices[0].message.tool_calls
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "The call was cut."}
    turns = [*said(sum_question), chat.choices[0].message, result]
    assert client.chat.completions.create(messages=turns, tools=[chat_add], **CHAT).choices[0].finish_reason
    response = client.responses.create(input=said(sum_question), tools=[add], **{**RESPONSE, "max_output_tokens": cut})
    assert response.status == "incomplete"
    result = {"type": "function_call_output", "call_id": response.output[-1].call_id, "output": "The call was cut."}
    turns = [*said(sum_question), *response.output, result]
    assert client.responses.create(input=turns, tools=[add], **RESPONSE).output


def test_a_streamed_response(client, question, answer):
    events = list(client.responses.create(input=question, stream=True, **RESPONSE))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer
    (done,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response.output == [done]


def test_a_loop_of_calls_of_responses(client, add, sum_question, sum_answer):
    given = said(sum_question)
    first = client.responses.create(input=given, tools=[add], **RESPONSE)
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 345, "b": 222})
    given += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "567"}]
    assert client.responses.create(input=given, tools=[add], **RESPONSE).output_text == sum_answer


def test_the_helper_of_streamed_responses(client, add, facts, sum_question):
    with client.responses.stream(input=sum_question, tools=[add], **RESPONSE) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 1
    assert json.loads(final.output[0].arguments) == {"a": 345, "b": 222}
    with client.responses.stream(input=facts, text_format=Person, **RESPONSE) as stream:
        assert stream.get_final_response().output_parsed == Person(name="Adam", age=7)


def test_responses_are_parsed(client, facts, sum_question):
    assert client.responses.parse(input=facts, text_format=Person, **RESPONSE).output_parsed == Person(
        name="Adam", age=7
    )
    tool = openai.pydantic_function_tool(Add, name="add")
    tool = {"type": "function", **tool["function"]}
    (call,) = client.responses.parse(input=sum_question, tools=[tool], **RESPONSE).output
    assert call.name == "add"


def test_instructions_come_first(client, api, question):
    reply = client.responses.create(input=question, instructions="Be brief.", **RESPONSE)
    system = {"role": "system", "content": "Be brief."}
    chat = api.chat([system, *question], temperature=0)
    assert reply.output_text == chat["choices"][0]["message"]["content"]
    assert reply.usage.input_tokens == chat["usage"]["prompt_tokens"]
    counted = client.responses.input_tokens.count(input=question, instructions="Be brief.", model="demo")
    assert counted.input_tokens == reply.usage.input_tokens


def test_what_the_server_does_not_keep(client, question, full):
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as error:
        client.responses.create(input=question, previous_response_id="resp_1", **RESPONSE)
    assert error.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(input=question, background=True, **RESPONSE)
    with full(), pytest.raises(openai.RateLimitError):
        client.responses.create(input=question, **RESPONSE)


def test_the_asynchronous_client_has_responses(api, question, answer):
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=api.v1, api_key=api.key, max_retries=0) as client:
            assert (await client.responses.create(input=question, **RESPONSE)).output_text == answer
            async with client.responses.stream(input=question, **RESPONSE) as stream:
                assert (await stream.get_final_response()).output_text == answer

    asyncio.run(ask())

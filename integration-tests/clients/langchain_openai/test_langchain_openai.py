"""`ChatOpenAI` and `OpenAI` of langchain-openai."""

from __future__ import annotations

import asyncio

import openai
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

CITY = "What is the weather in Paris?"


class Person(BaseModel):
    name: str
    age: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers"""
    return a + b


@pytest.fixture
def chat(api):
    return ChatOpenAI(base_url=api.v1, api_key=api.key, model="demo", temperature=0, max_retries=0)


@pytest.fixture
def llm(api):
    return OpenAI(base_url=api.v1, api_key=api.key, model="demo", temperature=0, max_tokens=12, max_retries=0)


def test_a_chat(chat, api, question, answer):
    reply = chat.invoke(question)
    assert reply.content == answer
    assert reply.response_metadata["finish_reason"] == "stop"
    assert reply.usage_metadata["output_tokens"] == api.chat(question, temperature=0)["usage"]["completion_tokens"]


def test_a_streamed_chat(chat, question, answer):
    chunks = list(chat.stream(question, stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == answer
    assert whole.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("options", [{}, {"use_responses_api": True}, {"output_version": "v1"}])
def test_a_second_turn(api, question, second, options):
    server = {"base_url": api.v1, "api_key": api.key, "model": "demo", "temperature": 0, "max_retries": 0}
    chat = ChatOpenAI(**server, **options)
    first = chat.invoke(question)
    reply = chat.invoke([*question, first, HumanMessage(second.question)])
    assert (reply.text, reply.usage_metadata["input_tokens"]) == (second.answer, second.prompt_tokens)


def test_several_chats_at_once(chat, question, answer):
    replies = chat.batch([question, [HumanMessage("What sound does a cow make?")], question])
    assert [reply.content for reply in replies] == [answer, "A cow says moo.", answer]


def test_messages_of_every_kind(chat):
    call = {"name": "get_weather", "args": {"city": "Paris"}, "id": "1"}
    weather = '{"temperature": 21, "weather": "sunny"}'
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city"}}
    messages = [
        SystemMessage("Be brief."),
        HumanMessage(CITY),
        AIMessage("", tool_calls=[call]),
        ToolMessage(weather, tool_call_id="1"),
    ]
    reply = chat.bind(tools=[tool], tool_choice="none").invoke(messages)
    assert reply.content == "It is sunny in Paris, with 21 degrees."


def test_a_sampled_chat(api, question):
    options = {"temperature": 0.9, "seed": 5, "max_tokens": 12, "top_p": 0.9, "presence_penalty": 0.5}
    chat = ChatOpenAI(base_url=api.v1, api_key=api.key, model="demo", **options)
    assert chat.invoke(question).content == api.chat(question, **options)["choices"][0]["message"]["content"]


def test_a_completion(llm, api, story):
    said = api.generate(story, max_new_tokens=12)["generated_text"]
    assert llm.invoke(story) == said
    assert "".join(llm.stream(story)) == said
    # They go out as the prompts of one request.
    assert [texts[0].text for texts in llm.generate(6 * [story]).generations] == 6 * [said]


@pytest.mark.parametrize("responses", [False, True])
def test_an_agent_calls_its_tool(api, sum_question, sum_answer, responses):
    chat = ChatOpenAI(
        base_url=api.v1, api_key=api.key, model="demo", temperature=0, max_retries=0, use_responses_api=responses
    )
    agent = create_agent(chat, [add])
    asked = {"messages": [HumanMessage(sum_question)]}
    _, call, result, said = agent.invoke(asked)["messages"]
    assert [(made["name"], made["args"]) for made in call.tool_calls] == [("add", {"a": 345, "b": 222})]
    assert (result.content, said.text) == ("567", sum_answer)
    pieces = [chunk.text for chunk, _ in agent.stream(asked, stream_mode="messages") if chunk.type == "AIMessageChunk"]
    assert "".join(pieces) == sum_answer
    assert len(pieces) > 3


def test_a_bound_tool_that_must_be_called(chat):
    call = chat.bind_tools([add], tool_choice="add").invoke("Hello!")
    assert [made["name"] for made in call.tool_calls] == ["add"]
    streamed = None
    for chunk in chat.bind_tools([add], tool_choice="any").stream("Hello!"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == call.tool_calls[0]["args"]


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output(chat, facts, method):
    assert chat.with_structured_output(Person, method=method).invoke(facts) == Person(name="Adam", age=7)


def test_structured_output_as_a_call(chat, saving, saving_request):
    asked = chat.with_structured_output(saving, method="function_calling")
    assert asked.invoke(saving_request) == {"name": "Adam", "age": 7}


def test_errors(chat, question, full):
    with pytest.raises(openai.UnprocessableEntityError, match="`temperature` must be >= 0"):
        chat.bind(temperature=-1).invoke(question)
    with full(), pytest.raises(openai.RateLimitError):
        chat.invoke(question)


def test_asynchronously(chat, llm, api, story, question, answer):
    async def ask() -> None:
        assert (await chat.ainvoke(question)).content == answer
        assert "".join([chunk.content async for chunk in chat.astream(question)]) == answer
        assert await llm.ainvoke(story) == api.generate(story, max_new_tokens=12)["generated_text"]

    asyncio.run(ask())

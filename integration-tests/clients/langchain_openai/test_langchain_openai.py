"""`ChatOpenAI` and `OpenAI` of langchain-openai."""

from __future__ import annotations

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

CITY = "What is the weather in Paris?"


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

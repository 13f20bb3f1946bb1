"""`HuggingFaceEndpoint` and `ChatHuggingFace` of langchain-huggingface."""

from __future__ import annotations

import asyncio

import pytest
from huggingface_hub.errors import HfHubHTTPError, OverloadedError, ValidationError
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint

# Most likely tokens: this client's own defaults sample.
GREEDY = {"temperature": None, "top_p": None, "typical_p": None, "max_new_tokens": 16}


@pytest.fixture
def llm(api):
    return HuggingFaceEndpoint(
        endpoint_url=api.url,
        task="text-generation",
        # For an address outside Hugging Face this client sends no `huggingfacehub_api_token`.
        server_kwargs={"headers": {"Authorization": f"Bearer {api.key}"}},
        **GREEDY,
    )


@pytest.fixture
def chat(llm):
    return ChatHuggingFace(llm=llm, model_id="demo", temperature=0, max_tokens=100)


def test_a_text(llm, api, story):
    said = api.generate(story, max_new_tokens=16)["generated_text"]
    assert llm.invoke(story) == said
    assert "".join(llm.stream(story)) == said


def test_the_defaults_of_the_client_sample(api, story):
    defaults = {"temperature": 0.8, "top_p": 0.95, "typical_p": 0.95}
    headers = {"Authorization": f"Bearer {api.key}"}
    llm = HuggingFaceEndpoint(endpoint_url=api.url, server_kwargs={"headers": headers}, max_new_tokens=16, seed=3)
    assert llm.invoke(story) == api.generate(story, max_new_tokens=16, seed=3, **defaults)["generated_text"]


def test_stop_strings_are_taken_off(llm, api, story):
    said = api.generate(story, max_new_tokens=16)["generated_text"]
    assert llm.invoke(story, stop=[" boy"]) == said.partition(" boy")[0]


def test_a_chat(chat, api, question, answer):
    reply = chat.invoke(question)
    assert reply.content == answer
    assert reply.response_metadata["finish_reason"] == "stop"
    assert reply.usage_metadata["output_tokens"] == api.chat(question, temperature=0)["usage"]["completion_tokens"]
    assert chat.invoke([SystemMessage("Be brief."), HumanMessage("What sound does a cow make?")]).content


def test_a_second_turn(chat, question, second):
    reply = chat.invoke([*question, chat.invoke(question), HumanMessage(second.question)])
    assert (reply.content, reply.usage_metadata["input_tokens"]) == (second.answer, second.prompt_tokens)


def test_a_streamed_chat(chat, question, answer):
    assert "".join(chunk.content for chunk in chat.stream(question)) == answer


def test_errors(llm, chat, story, question, full):
    with pytest.raises(ValidationError, match="max_new_tokens"):
        llm.invoke(story, max_new_tokens=100_000)
    with pytest.raises(HfHubHTTPError, match="`temperature` must be >= 0"):
        chat.bind(temperature=-1).invoke(question)
    with full():
        with pytest.raises(OverloadedError):
            llm.invoke(story)
        with pytest.raises(HfHubHTTPError, match="429"):
            chat.invoke(question)


def test_asynchronously(llm, chat, api, story, question, answer):
    async def ask() -> None:
        assert await llm.ainvoke(story) == api.generate(story, max_new_tokens=16)["generated_text"]
        assert (await chat.ainvoke(question)).content == answer
        assert "".join([chunk.content async for chunk in chat.astream(question)]) == answer

    asyncio.run(ask())

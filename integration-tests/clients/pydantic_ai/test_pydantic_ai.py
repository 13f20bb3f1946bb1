"""Agents of Pydantic AI on each API that the server has for them."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = {"temperature": 0.0, "max_tokens": 100}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=["chat", "responses", "messages"])
def model(request, api):
    if request.param == "messages":
        return AnthropicModel("demo", provider=AnthropicProvider(base_url=api.url, api_key=api.key))
    provider = OpenAIProvider(base_url=api.v1, api_key=api.key)
    return (OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel)("demo", provider=provider)


@pytest.fixture
def calculator(model):
    """An agent with the tool `add`, and the calls that it made."""
    agent = Agent(model, model_settings=SETTINGS)
    calls = []

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers"""
        calls.append((a, b))
        return a + b

    return agent, calls


def test_a_calculator(calculator, sum_question, sum_answer):
    agent, calls = calculator
    run = agent.run_sync(sum_question)
    assert run.output == sum_answer
    assert calls == [(345, 222)]
    assert run.usage.requests == 2
    assert agent.run_sync("Hello!", message_history=run.all_messages()).usage.requests == 1


def test_a_second_turn(model, question, second):
    agent = Agent(model, model_settings=SETTINGS)
    first = agent.run_sync(question[0]["content"])
    run = agent.run_sync(second.question, message_history=first.all_messages())
    assert run.output == second.answer
    assert run.usage.input_tokens == second.prompt_tokens


def test_a_streamed_run(calculator, sum_question, sum_answer):
    agent, calls = calculator

    async def ask() -> list[str]:
        async with agent.run_stream(sum_question) as run:
            return [text async for text in run.stream_text(delta=True)]

    assert "".join(asyncio.run(ask())) == sum_answer
    assert calls == [(345, 222)]


def test_output_in_the_form_of_the_api(model, facts):
    # Otherwise taken for a model of Anthropic's that knows no schemas.
    model.profile["supports_json_schema_output"] = True
    agent = Agent(model, output_type=NativeOutput(Person), model_settings=SETTINGS)
    assert agent.run_sync(facts).output == Person(name="Adam", age=7)


def test_output_as_a_call(model, saving_request):
    output = ToolOutput(Person, name="save_person", description="Save the person")
    agent = Agent(model, output_type=output, model_settings=SETTINGS)
    assert agent.run_sync(saving_request).output == Person(name="Adam", age=7)


def test_a_refusal(model, question):
    with pytest.raises(ModelHTTPError, match="temperature") as error:
        Agent(model, model_settings={"temperature": -1.0}).run_sync(question[0]["content"])
    assert error.value.status_code in (400, 422)

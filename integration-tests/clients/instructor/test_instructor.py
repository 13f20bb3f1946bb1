"""Instructor: pydantic models out of each way that the server has to ask for them."""

from __future__ import annotations

import anthropic
import instructor
import openai
import pytest
from pydantic import BaseModel, create_model

SHORT = {"model": "demo", "temperature": 0, "max_tokens": 100}


class Person(BaseModel):
    name: str
    age: int


# The tool has the name of the class.
Saved = create_model("save_person", __doc__="Save the person", __base__=Person)
ADAM = {"name": "Adam", "age": 7}


@pytest.fixture
def client(api):
    with openai.OpenAI(base_url=api.v1, api_key=api.key, max_retries=0) as client:
        yield client


@pytest.fixture
def asked(saving_request):
    """For a call."""
    return {"response_model": Saved, "messages": [{"role": "user", "content": saving_request}], "max_retries": 0}


def test_a_schema(client, facts):
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    messages = [{"role": "user", "content": facts}]
    person, completion = patched.create_with_completion(response_model=Person, messages=messages, **SHORT)
    assert person.model_dump() == ADAM
    assert completion.usage.completion_tokens > 0


def test_a_second_turn(client, facts, question, answer):
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    messages = [{"role": "user", "content": facts}]
    _, first = patched.create_with_completion(response_model=Person, messages=messages, **SHORT)
    turns = [*messages, first.choices[0].message.model_dump(), *question]
    second = patched.create(response_model=None, messages=turns, **SHORT)
    assert second.choices[0].message.content == answer
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens


def test_partial_objects(client, facts):
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    messages = [{"role": "user", "content": facts}]
    *parts, last = patched.create_partial(response_model=Person, messages=messages, **SHORT)
    assert last.model_dump() == ADAM
    assert any(part.age is None for part in parts)


def test_a_call(client, asked):
    patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    assert patched.create(**asked, **SHORT).model_dump() == ADAM


def test_a_response(client, asked):
    patched = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
    short = {"model": "demo", "temperature": 0, "max_output_tokens": 100}
    assert patched.create(**asked, **short).model_dump() == ADAM


def test_a_message(api, asked):
    with anthropic.Anthropic(base_url=api.url, api_key=api.key, max_retries=0) as client:
        patched = instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS)
        short = {"model": "demo", "max_tokens": 100, "extra_body": {"temperature": 0}}
        assert patched.create(**asked, **short).model_dump() == ADAM

"""Grammars and schemas: what is sent for a pydantic model, and answers read into one."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from stub import Stub, call, message_answer, response

from text_generation import AsyncClient, Client, structured
from text_generation.errors import GrammarError, InvalidAnswerError, TextGenerationError, UnknownError, ValidationError
from text_generation.types import Grammar, GrammarType

QUESTION = [{"role": "user", "content": "Who is it?"}]


class Kind(Enum):
    CAT = "cat"
    DOG = "dog"


class Toy(BaseModel):
    """A thing to play with."""

    name: str


class Pet(BaseModel):
    name: str = Field(description="What it answers to")
    kind: Kind
    age: int | None = None
    toys: list[Toy] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    properties: str
    size: Literal["small", "large"] = "small"


SCHEMA: dict[str, Any] = {
    "$defs": {
        "Kind": {"enum": ["cat", "dog"], "title": "Kind", "type": "string"},
        "Toy": {
            "additionalProperties": False,
            "description": "A thing to play with.",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "title": "Toy",
            "type": "object",
        },
    },
    "additionalProperties": False,
    "properties": {
        "name": {"description": "What it answers to", "type": "string"},
        "kind": {"$ref": "#/$defs/Kind"},
        "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "toys": {"default": [], "items": {"$ref": "#/$defs/Toy"}, "type": "array"},
    },
    "required": ["name", "kind"],
    "title": "Pet",
    "type": "object",
}
PET = Pet(name="Mia", kind=Kind.CAT, toys=[Toy(name="ball")])


def generated(text: str, reason: str = "eos_token") -> list[dict[str, Any]]:
    answer = response()
    return [{**answer, "generated_text": text, "details": {**answer["details"], "finish_reason": reason}}]


def test_a_model_as_grammar_is_its_schema_and_the_text_becomes_an_instance(stub: Stub) -> None:
    stub.script = [(200, generated(PET.model_dump_json()))]
    answer = Client(stub.url).generate("Who is it?", grammar=Pet).parse(Pet)
    assert answer == PET
    assert stub.requests[0]["parameters"]["grammar"] == {"type": "json", "value": SCHEMA}


def test_async_clients_and_streams_take_the_same_grammars(stub: Stub) -> None:
    async def main() -> Pet:
        async with AsyncClient(stub.url) as client:
            [answer async for answer in client.generate_stream("Who is it?", grammar=Pet)]
            stub.script = [(200, generated(PET.model_dump_json())), (200, chat_answer())]
            answer = await client.generate("Who is it?", grammar=Pet)
            assert (await client.chat(QUESTION, response_format=Pet)).parse(Pet) == PET
            return answer.parse(Pet)

    assert asyncio.run(main()) == PET
    list(Client(stub.url).generate_stream("Who is it?", grammar=Pet))
    grammars = [request["parameters"]["grammar"] for request in stub.requests if request["path"] == "/"]
    assert grammars == [{"type": "json", "value": SCHEMA}] * 3


def chat_answer(**message: Any) -> dict[str, Any]:
    return message_answer("stop", **{"content": PET.model_dump_json(), **message})


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "regex", "value": "[0-9]+"},
        {"type": "json", "value": {"type": "object"}},
        {"type": "json", "value": '{"type": "object"}'},
        {"type": "json_schema", "value": {"name": "pet", "schema": {"type": "object"}}},
    ],
)
def test_dictionaries_and_grammars_are_sent_as_they_are(stub: Stub, grammar: dict[str, Any]) -> None:
    client = Client(stub.url)
    client.generate("Hi", grammar=grammar)
    client.generate("Hi", grammar=Grammar(GrammarType(grammar["type"]), grammar["value"]))
    assert [request["parameters"]["grammar"] for request in stub.requests] == [grammar, grammar]


def test_the_second_name_of_json_grammars_works(stub: Stub) -> None:
    Client(stub.url).generate("Hi", grammar={"type": "json_object", "value": {"type": "object"}})
    assert stub.requests[0]["parameters"]["grammar"] == {"type": "json", "value": {"type": "object"}}


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ({"type": "xml", "value": "a"}, '`grammar.type` must be one of "json", "json_schema", "regex"'),
        ({"type": "regex"}, "`type` and `value`"),
        ({"type": "regex", "value": {}}, "cannot be empty"),
        ({"type": "json_schema", "value": {"name": "pet"}}, "the key `schema`"),
        ("[0-9]+", "must be a Grammar"),
        (int, "must be a Grammar"),
    ],
)
def test_wrong_grammars_are_refused_before_they_are_sent(stub: Stub, grammar: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Client(stub.url).generate("Hi", grammar=grammar)
    assert stub.requests == []


def test_a_model_as_response_format_is_its_strict_schema(stub: Stub) -> None:
    stub.script = [(200, chat_answer(reasoning_content="It purrs."))]
    answer = Client(stub.url).chat(QUESTION, response_format=Pet)
    assert answer.parse(Pet) == PET
    assert answer.message.reasoning_content == "It purrs."
    json_schema = {"name": "Pet", "schema": SCHEMA, "strict": True}
    assert stub.requests[0]["response_format"] == {"type": "json_schema", "json_schema": json_schema}


def test_other_response_formats_are_sent_as_they_are(stub: Stub) -> None:
    client, regex = Client(stub.url), Grammar(GrammarType.Regex, "[0-9]+")
    client.chat(QUESTION, response_format={"type": "json_object"})
    client.chat(QUESTION, response_format=regex)
    sent = [request["response_format"] for request in stub.requests]
    assert sent == [{"type": "json_object"}, {"type": "regex", "value": "[0-9]+"}]
    wrong: Any = int
    with pytest.raises(ValidationError, match="`response_format` must be a pydantic model"):
        client.chat(QUESTION, response_format=wrong)


def test_only_what_a_class_leaves_open_is_closed() -> None:
    schema = structured.schema_of(Open)
    assert schema["additionalProperties"] is True
    assert schema["properties"]["properties"] == {"type": "string"}


@pytest.mark.parametrize("name", ["Page[int]", "Über", "x" * 100, "[]"])
def test_names_of_schemas_have_the_characters_that_servers_take(name: str) -> None:
    sent = structured.json_schema_format(name, {})["json_schema"]["name"]
    assert 1 <= len(sent) <= 64
    assert sent.replace("_", "").isascii()


@pytest.mark.parametrize("text", ["", "Mia", '{"name": "Mia"}', '{"name": "Mia", "kind": "cow"}', '{"name": "Mi'])
def test_an_answer_of_another_form_is_an_error_that_holds_it(text: str) -> None:
    with pytest.raises(InvalidAnswerError, match="the answer is no Pet: ") as caught:
        structured.parse(Pet, text)
    assert caught.value.text == text
    assert isinstance(caught.value, TextGenerationError)


def test_an_answer_that_was_cut_off_says_so(stub: Stub) -> None:
    cut = message_answer("length", content='{"name": "Mi')
    stub.script = [(200, generated('{"name": "Mi', "length")), (200, cut)]
    client = Client(stub.url)
    for answer in (client.generate("Hi", grammar=Pet), client.chat(QUESTION, response_format=Pet)):
        with pytest.raises(InvalidAnswerError, match="cut off"):
            answer.parse(Pet)


def test_an_answer_without_a_text_is_no_instance(stub: Stub) -> None:
    none = message_answer("stop", content="{}")
    stub.script = [(200, message_answer("tool_calls", tool_calls=[call(0, "f", "{}")])), (200, {**none, "choices": []})]
    client = Client(stub.url)
    with pytest.raises(InvalidAnswerError):
        client.chat(QUESTION).parse(Pet)
    with pytest.raises(UnknownError, match="`choices` is empty"):
        client.chat(QUESTION).parse(Pet)


@pytest.mark.parametrize("status", [422, 200])
def test_a_grammar_that_cannot_be_followed_has_its_own_error(stub: Stub, status: int) -> None:
    error = {"error": "the grammar can be followed no further", "error_type": "grammar"}
    stub.script = [(status, [error] if status == 200 else error)]
    with pytest.raises(GrammarError, match="no further"):
        list(Client(stub.url).generate_stream("Hi", grammar=Pet))


def test_the_schema_is_json() -> None:
    assert json.loads(json.dumps(structured.schema_of(Pet))) == SCHEMA

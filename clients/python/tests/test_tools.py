"""Python functions as tools, and the turns of a model that calls them."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from stub import TEXT, WAIT, Stub, call, message_answer

from text_generation import AsyncClient, Client
from text_generation.endpoints import Messages
from text_generation.errors import MissingDependencyError, TurnLimitError, ValidationError
from text_generation.tool_loop import ToolRun
from text_generation.tools import FunctionTool, ToolBox
from text_generation.types import Message, Tool, ToolCall

QUESTION: Messages = [{"role": "user", "content": "What is the weather?"}]
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@dataclass
class Place:
    city: str
    country: str = "FR"


class Report(BaseModel):
    text: str
    degrees: float


def weather(place: Place, unit: Annotated[Literal["C", "F"], Field(description="Of temperatures")] = "C") -> Report:
    """The weather in a city.

    Today only.
    """
    if place.city == "Atlantis":
        raise LookupError("no such city: Atlantis")
    return Report(text=f"sunny in {place.city}, {unit}", degrees=21.5)


def add(a: int, b: int) -> int:
    return a + b


async def slow_add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def asks(*calls: tuple[str, str], **message: Any) -> tuple[int, Any]:
    """An answer that calls tools."""
    listed = [call(number, name, arguments) for number, (name, arguments) in enumerate(calls)]
    return 200, message_answer("tool_calls", tool_calls=listed, **message)


def run_tools(kind: str, stub: Stub, functions: Sequence[Callable[..., Any]], **options: Any) -> ToolRun:
    if kind == "sync":
        with Client(stub.url) as client:
            return client.run_tools(QUESTION, functions, **options)

    async def main() -> ToolRun:
        async with AsyncClient(stub.url) as client:
            return await client.run_tools(QUESTION, functions, **options)

    return asyncio.run(asyncio.wait_for(main(), WAIT))


def results(stub: Stub, request: int = -1) -> list[str]:
    """Results of calls that a request carries."""
    return [message["content"] for message in stub.requests[request]["messages"] if message["role"] == "tool"]


def test_a_definition_is_name_docstring_and_schema() -> None:
    assert FunctionTool(weather).definition == Tool(
        "function",
        {
            "name": "weather",
            "description": "The weather in a city.\n\nToday only.",
            "parameters": {
                "$defs": {
                    "Place": {
                        "additionalProperties": False,
                        "properties": {"city": {"type": "string"}, "country": {"default": "FR", "type": "string"}},
                        "required": ["city"],
                        "title": "Place",
                        "type": "object",
                    }
                },
                "additionalProperties": False,
                "properties": {
                    "place": {"$ref": "#/$defs/Place"},
                    "unit": {"default": "C", "description": "Of temperatures", "enum": ["C", "F"], "type": "string"},
                },
                "required": ["place"],
                "type": "object",
            },
        },
    )
    assert "description" not in FunctionTool(add).definition.function


def test_chat_takes_functions_among_its_tools(stub: Stub) -> None:
    described: dict[str, Any] = {"type": "function", "function": {"name": "other", "parameters": {}}}
    tools = [add, described, Tool("function", {"name": "third"})]
    choice = {"type": "function", "function": {"name": "add"}}
    Client(stub.url).chat(QUESTION, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    request = stub.requests[0]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["add", "other", "third"]
    assert request["tools"][1] == described
    assert (request["tool_choice"], request["parallel_tool_calls"]) == (choice, False)


def nameless(*numbers: int) -> None: ...
def positional(number: int, /) -> None: ...
def unreadable(lock: threading.Lock) -> None: ...
def undefined(value: Nowhere) -> None: ...  # noqa: F821 # pyright: ignore


NO_TOOLS: list[Any] = [nameless, positional, unreadable, undefined, lambda: 1, 3, len]


@pytest.mark.parametrize("function", NO_TOOLS)
def test_what_cannot_be_a_tool_is_refused_before_it_is_sent(stub: Stub, function: Any) -> None:
    client = Client(stub.url)
    with pytest.raises(ValidationError, match="tool"):
        client.chat(QUESTION, tools=[function])
    with pytest.raises(ValidationError, match="tool"):
        client.run_tools(QUESTION, [function])
    assert stub.requests == []


def test_two_functions_of_one_name_are_refused(stub: Stub) -> None:
    with pytest.raises(ValidationError, match="two functions with the name `add`"):
        Client(stub.url).run_tools(QUESTION, [add, add])


def test_a_blocking_client_refuses_asynchronous_functions(stub: Stub) -> None:
    with pytest.raises(ValidationError, match="`slow_add` is asynchronous"):
        Client(stub.url).run_tools(QUESTION, [add, slow_add])
    assert stub.requests == []


@KINDS
def test_calls_are_carried_out_until_the_model_answers(stub: Stub, kind: str) -> None:
    first = asks(("weather", '{"place": {"city": "Paris"}}'), ("add", '{"a": 1, "b": 2}'), reasoning_content="Hm.")
    stub.script = [first, asks(("add", '{"a": 3, "b": "4"}'), content="And now?")]
    run = run_tools(kind, stub, [weather, add], max_tokens=9)
    assert run.answer.message.content == TEXT
    report = '{"text":"sunny in Paris, C","degrees":21.5}'
    assert [results(stub, number) for number in range(3)] == [[], [report, "3"], [report, "3", "7"]]
    messages = stub.requests[2]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [message.get("tool_call_id") for message in messages[2:4]] == ["call_0", "call_1"]
    assert messages[1]["tool_calls"] == first[1]["choices"][0]["message"]["tool_calls"]
    assert messages[1]["reasoning_content"] == "Hm."
    assert run.messages[-1] == Message("assistant", TEXT)
    assert len(run.messages) == 7
    assert {request["max_tokens"] for request in stub.requests} == {9}
    assert all(len(request["tools"]) == 2 for request in stub.requests)
    assert len(QUESTION) == 1


@KINDS
@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("weather", '{"place": {"city": "Atlantis"}}', "error: LookupError: no such city: Atlantis"),
        ("weather", "{}", "error: ValueError: place: Missing required argument"),
        ("weather", '{"place": {"city": "Paris"', "error: ValueError: Invalid JSON"),
        ("add", '{"a": 1, "b": "two", "c": 3}', "error: ValueError: b: Input should be a valid integer"),
        ("add", "", "error: ValueError: a: Missing required argument; b: Missing required argument"),
        ("subtract", "{}", "error: there is no tool `subtract`, only weather, add"),
    ],
)
def test_what_goes_wrong_in_a_call_is_told_to_the_model(
    stub: Stub, kind: str, name: str, arguments: str, result: str
) -> None:
    stub.script = [asks((name, arguments), ("add", '{"a": 1, "b": 2}'))]
    assert run_tools(kind, stub, [weather, add]).answer.message.content == TEXT
    told, other = results(stub)
    assert told.startswith(result)
    assert "two" not in told
    assert other == "3"


def test_asynchronous_calls_of_one_answer_run_at_the_same_time(stub: Stub) -> None:
    barrier = threading.Barrier(2)

    def meet(name: str) -> str:
        barrier.wait(WAIT)
        return f"met as {name}"

    stub.script = [asks(("meet", '{"name": "a"}'), ("meet", '{"name": "b"}'), ("slow_add", '{"a": 1, "b": 2}'))]
    run_tools("async", stub, [meet, slow_add])
    assert results(stub) == ["met as a", "met as b", "3"]


@KINDS
def test_the_number_of_turns_is_bounded(stub: Stub, kind: str) -> None:
    stub.script = [asks(("add", '{"a": 1, "b": 2}')) for _ in range(3)]
    with pytest.raises(TurnLimitError, match="turn 2") as caught:
        run_tools(kind, stub, [add], max_turns=2)
    assert len(stub.requests) == 2
    assert len(caught.value.messages) == 3
    assert pickle.loads(pickle.dumps(caught.value)).messages == caught.value.messages


@KINDS
@pytest.mark.parametrize(("options", "name"), [({"max_turns": 0}, "`max_turns`"), ({"n": 2}, "`n` must be 1")])
def test_wrong_arguments_of_a_run(stub: Stub, kind: str, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        run_tools(kind, stub, [add], **options)
    assert stub.requests == []


@KINDS
@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("required", "auto"),
        ("add", "auto"),
        ({"type": "function", "function": {"name": "add"}}, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        ),
    ],
)
def test_a_choice_that_forces_a_call_holds_for_one_turn(stub: Stub, kind: str, choice: Any, later: Any) -> None:
    stub.script = [asks(("add", '{"a": 1, "b": 2}'))]
    run_tools(kind, stub, [add], tool_choice=choice)
    assert [request["tool_choice"] for request in stub.requests] == [choice, later]


@KINDS
def test_calls_that_were_cut_off_are_left_alone(stub: Stub, kind: str) -> None:
    stub.script = [(200, message_answer("length", tool_calls=[call(0, "add", '{"a": 1')]))]
    answer = run_tools(kind, stub, [add]).answer
    assert (answer.choice.finish_reason, len(stub.requests)) == ("length", 1)


@KINDS
def test_a_run_ends_with_an_answer_of_the_asked_form(stub: Stub, kind: str) -> None:
    content = '{"text": "sunny", "degrees": 21}'
    stub.script = [asks(("add", '{"a": 1, "b": 2}')), (200, message_answer("stop", content=content))]
    run = run_tools(kind, stub, [add], response_format=Report)
    assert run.parse(Report) == Report(text="sunny", degrees=21)


@pytest.mark.parametrize(
    ("function", "name", "arguments"),
    [
        ({"name": "f", "arguments": '{"a": 1}'}, "f", '{"a": 1}'),
        ({"name": "f", "arguments": {"a": 1}}, "f", '{"a": 1}'),
        ({"name": "f", "arguments": None}, "f", "{}"),
        ({}, "", "{}"),
    ],
)
def test_calls_are_read_from_every_server(function: dict[str, Any], name: str, arguments: str) -> None:
    made = ToolCall("1", "function", function)
    assert (made.name, made.arguments) == (name, arguments)


def test_results_are_text_whatever_they_are() -> None:
    def give(what: str) -> Any:
        return {"list": [1, Place("Paris")], "none": None, "bytes": b"a", "object": object(), "text": "a\n"}[what]

    toolbox = ToolBox([give])
    texts = {
        what: toolbox.run(ToolCall("1", "function", {"name": "give", "arguments": json.dumps({"what": what})})).content
        for what in ("list", "none", "bytes", "object", "text")
    }
    assert texts["list"] == '[1,{"city":"Paris","country":"FR"}]'
    assert (texts["none"], texts["bytes"], texts["text"]) == ("null", '"a"', "a\n")
    assert "object object" in str(texts["object"])


def test_without_pydantic_all_but_functions_works(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pydantic", "text_generation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    import text_generation
    from text_generation import errors

    client = text_generation.Client(stub.url)
    assert client.chat(QUESTION, tools=[{"type": "function", "function": {"name": "f"}}]).message.content == TEXT
    assert client.generate("Hi", grammar={"type": "regex", "value": "a"}).generated_text == TEXT
    with pytest.raises(errors.MissingDependencyError, match="pip install pydantic"):
        client.chat(QUESTION, tools=[add])
    assert issubclass(MissingDependencyError, ImportError)

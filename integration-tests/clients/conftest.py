"""What the tests of every client share. They run in the client's own environment, against a server that runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Api:
    """The server without a client between: what it answers itself is what its clients must show."""

    url: str
    key: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def open(self, path: str, **body: Any) -> Any:
        """The response to a POST, or to a GET where there is no body; the caller closes it."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        content = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.url + path, content, headers)
        return urllib.request.urlopen(request, timeout=60)

    def info(self) -> dict[str, Any]:
        """The answer of /info."""
        with self.open("/info") as reply:
            return json.load(reply)

    def generate(self, inputs: str, **parameters: Any) -> dict[str, Any]:
        """The answer of /generate, with details."""
        with self.open("/generate", inputs=inputs, parameters={"details": True, **parameters}) as reply:
            return json.load(reply)

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """The answer of /v1/chat/completions."""
        with self.open("/v1/chat/completions", messages=messages, **fields) as reply:
            return json.load(reply)

    def occupy(self, max_tokens: int) -> Any:
        """The stream of a completion that takes every place of the server, as soon as all are free."""
        n = self.info()["max_concurrent_requests"]
        fields: dict[str, Any] = {"n": n, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        end = time.monotonic() + 30
        while True:
            try:
                return self.open("/v1/completions", prompt="Once", **fields)
            except urllib.error.HTTPError as error:
                if error.code != 429 or time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def wait_until_empty(self) -> None:
        """Returns when the server has all its places again: it has ended the completion that took them all."""
        with self.occupy(1) as stream:
            stream.read()


@pytest.fixture(scope="session")
def api() -> Api:
    """Where the server is, and its key."""
    return Api(os.environ["TEXT_GENERATION_URL"], os.environ["TEXT_GENERATION_KEY"])


@pytest.fixture
def full(api: Api) -> Callable[[], AbstractContextManager[Callable[[], None]]]:
    """Within its block the server refuses every request with 429, until what the block is given is called."""

    @contextlib.contextmanager
    def hold() -> Iterator[Callable[[], None]]:
        with api.occupy(900) as stream:
            stream.readline()
            yield stream.close
        api.wait_until_empty()

    return hold


@pytest.fixture(scope="session")
def story() -> str:
    """A prompt that the model has much to say after."""
    return "Once upon a time"


@pytest.fixture(scope="session")
def question() -> list[dict[str, Any]]:
    """A chat whose answer, with temperature 0, is `answer`."""
    return [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="session")
def answer(api: Api, question: list[dict[str, Any]]) -> str:
    return api.chat(question, temperature=0)["choices"][0]["message"]["content"]


@dataclass(frozen=True)
class Turn:
    """What a user says after the answer to `question`, and what the model makes of the whole conversation."""

    question: str
    answer: str
    prompt_tokens: int

    @property
    def message(self) -> dict[str, Any]:
        return {"role": "user", "content": self.question}


@pytest.fixture(scope="session")
def second(api: Api, question: list[dict[str, Any]], answer: str) -> Turn:
    said = "What sound does a cow make?"
    turns = [*question, {"role": "assistant", "content": answer}, {"role": "user", "content": said}]
    reply = api.chat(turns, temperature=0)
    return Turn(said, reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens"])


@pytest.fixture(scope="session")
def sum_question() -> str:
    """What the model can answer with the tool `add` only: it adds no numbers above 99 itself."""
    return "Add 345 and 222."


@pytest.fixture(scope="session")
def sum_answer() -> str:
    """What the model says once it has read the tool's result."""
    return "345 + 222 = 567."


@pytest.fixture(scope="session")
def add_schema() -> dict[str, Any]:
    """The arguments of the tool `add`."""
    number = {"type": "integer"}
    return {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}


@pytest.fixture(scope="session")
def facts() -> str:
    """A request for the JSON object `{"name": "Adam", "age": 7}`, in the model's own words."""
    return "Give me a JSON object with name Adam, age 7."


@pytest.fixture(scope="session")
def saving() -> dict[str, Any]:
    """The same object as the arguments of a tool, with a name of the kind that the model knows."""
    fields = {"name": {"type": "string"}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": fields, "required": ["name", "age"]}
    return {"title": "save_person", "description": "Save the person", **schema}


@pytest.fixture(scope="session")
def saving_request() -> str:
    return "Please save the person with name Adam and age 7."

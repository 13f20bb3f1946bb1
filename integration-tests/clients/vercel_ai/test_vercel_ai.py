"""The Vercel AI SDK on Node, over chats and over the Responses API."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "calls.mjs"


@pytest.fixture(params=["compatible", "chat", "responses"])
def run(request):
    """Does one call of the script, which comes by a pipe: so Node looks for packages from where it runs."""

    def run(call, *prompts):
        command = ["node", "--input-type=module", "-", request.param, call, *prompts]
        done = subprocess.run(command, input=SCRIPT.read_text(), cwd=sys.prefix, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_tools_are_called_and_their_results_read(run, sum_question, sum_answer):
    said = run("generateText", sum_question)
    assert said.pop("tokens") > 0
    assert said == {"text": sum_answer, "finishReason": "stop", "calls": [[345, 222]], "steps": 2}


def test_a_stream_with_calls(run, sum_question, sum_answer):
    said = run("streamText", sum_question)
    assert "".join(said["texts"]) == sum_answer
    assert len(said["texts"]) > 3
    assert json.loads("".join(said["inputs"])) == {"a": 345, "b": 222}
    assert len(said["inputs"]) > 1
    assert said["calls"] == [[345, 222]]
    assert said["tokens"] > 0


def test_a_second_turn(run, question, second):
    """Over the Responses API the SDK does not send answers back, but refers to them, unless `store` is false."""
    prompts = question[0]["content"], second.question
    assert run("secondTurn", *prompts) == {"text": second.answer, "tokens": second.prompt_tokens}
    assert run("withoutStore", *prompts) == {"text": second.answer}


def test_a_second_turn_after_calls(run, sum_question, second):
    said = run("secondTurnOfStreams", sum_question, second.question)
    assert said == {"text": second.answer, "calls": [[345, 222]]}


def test_objects(run, facts):
    assert run("generateObject", facts) == {"name": "Adam", "age": 7}
    streamed = run("streamObject", facts)
    assert streamed["object"] == {"name": "Adam", "age": 7}
    assert any("age" not in part for part in streamed["parts"])


def test_a_refusal(run):
    error = run("refusal", "Hello!")
    # `/v1/responses` answers 400.
    assert error["statusCode"] in (400, 422)
    assert not error["isRetryable"]
    assert "`temperature` must be >= 0" in error["message"]

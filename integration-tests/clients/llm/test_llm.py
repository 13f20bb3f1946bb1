"""`llm`, an agent of the terminal: it is told of the server in a file, and lends the model Python functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
- model_id: demo
  model_name: demo
  api_base: {url}
  api_key_name: demo
  supports_tools: true
  supports_schema: true
"""
ADD = '''
def add(a: int, b: int) -> int:
    """Add two numbers"""
    return a + b
'''


@pytest.fixture
def llm(api, tmp_path):
    """Runs the command; its standard output."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODEL.format(url=api.v1))
    (tmp_path / "keys.json").write_text(json.dumps({"demo": api.key}))

    def llm(*arguments):
        command = [Path(sys.prefix) / "bin" / "llm", *arguments]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        run = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    return llm


def test_an_answer(llm, question, answer):
    assert llm("-m", "demo", "-o", "temperature", "0", question[0]["content"]) == answer


def test_a_second_turn(llm, question, answer, second):
    assert llm("-m", "demo", "-o", "temperature", "0", question[0]["content"]) == answer
    assert llm("--continue", "-o", "temperature", "0", second.question) == second.answer


@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
def test_a_tool_is_called_and_its_result_read(llm, sum_question, sum_answer, stream):
    said = llm("-m", "demo", "-o", "temperature", "0", *stream, "--functions", ADD, sum_question)
    assert said == sum_answer
    call, read = json.loads(llm("logs", "list", "--json"))
    if not call["tool_calls"]:
        call, read = read, call
    assert [(made["name"], made["arguments"]) for made in call["tool_calls"]] == [("add", {"a": 345, "b": 222})]
    assert [result["output"] for result in read["tool_results"]] == ["567"]


def test_a_schema(llm, facts):
    said = llm("-m", "demo", "-o", "temperature", "0", "--schema", "name, age int", facts)
    assert json.loads(said) == {"name": "Adam", "age": 7}

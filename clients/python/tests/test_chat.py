"""The command `text-generation chat` against a server on the loopback device."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stub import TEXT, WAIT, Stub, call, chat_events, message_answer, message_events

from text_generation import Client, __version__
from text_generation.chat import Chat
from text_generation.cli import main
from text_generation.endpoints import ChatOptions
from text_generation.tools import ToolBox


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


def weather(city: str) -> str:
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"sunny\nin {city}\x1b[2J"


def chat(
    url: str,
    *lines: str,
    system: str | None = None,
    out: io.StringIO | None = None,
    notes: io.StringIO | None = None,
    tools: ToolBox | None = None,
) -> tuple[int, str, str]:
    """Type the lines; returns exit status, answers and notes."""
    out, notes = out or io.StringIO(), notes or io.StringIO()
    script = iter(lines)

    def read_line() -> str:
        line = next(script, None)
        if line is None:
            raise EOFError
        return line

    with Client(url, timeout=WAIT) as client:
        status = Chat(client, system, ChatOptions(max_tokens=9), out, notes, tools).run(read_line)
    return status, out.getvalue(), notes.getvalue()


def contents(stub: Stub) -> list[list[str]]:
    return [[message["content"] for message in request["messages"]] for request in stub.requests]


def test_the_conversation_grows_and_each_answer_has_its_speed(stub: Stub) -> None:
    status, out, notes = chat(stub.url, "One?", "", "Two?", system="Be short.")
    assert (status, out) == (0, f"{TEXT}\n{TEXT}\n")
    assert contents(stub) == [["Be short.", "One?"], ["Be short.", "One?", TEXT, "Two?"]]
    assert stub.requests[0]["max_tokens"] == 9
    assert re.fullmatch(r"(\[2 tokens, first after [\d.]+ s, then [\d.]+ tokens/s\]\n){2}\n", notes)


def test_commands(stub: Stub) -> None:
    lines = ["One?", "/reset", "/system Be long.", "Two?", "/system", "/reset", "Three?", "/nonsense", "/exit", "Four?"]
    _, _, notes = chat(stub.url, *lines)
    assert contents(stub) == [["One?"], ["Be long.", "Two?"], ["Three?"]]
    assert "/exit" in notes


def test_quit_leaves_too(stub: Stub) -> None:
    status, _, notes = chat(stub.url, "/quit", "One?")
    assert (status, notes, stub.requests) == (0, "", [])


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"text-generation {__version__}\n"


def test_a_question_without_an_answer_does_not_stay(stub: Stub) -> None:
    error = {"error": {"message": "Model is overloaded", "type": "overloaded"}, "error_type": "overloaded"}
    stub.script = [(429, error)]
    status, out, notes = chat(stub.url, "One?", "Two?")
    assert (status, out) == (0, f"\n{TEXT}\n")
    assert notes.startswith("error: Model is overloaded\n[2 tokens")
    assert contents(stub) == [["One?"], ["Two?"]]


def test_ctrl_c_stops_the_generation_and_keeps_what_came(stub: Stub) -> None:
    stub.gate.clear()

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            count = super().write(text)
            if text == " Paris":
                raise KeyboardInterrupt
            return count

    status, out, notes = chat(stub.url, "One?", out=Interrupted())
    assert stub.left.wait(WAIT)
    assert (status, out) == (0, " Paris\n")
    assert "stopped\n[1 chunks" in notes


def test_answers_cannot_steer_the_terminal(stub: Stub) -> None:
    events = chat_events()
    events[0]["choices"][0]["delta"]["content"] = "\x1b[2J\x9b1mred\t\n"
    stub.script = [(200, events)]
    assert chat(stub.url, "One?")[1] == "[2J1mred\t\n.\n"


def test_the_command_reads_standard_input(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\n"))
    monkeypatch.setenv("TEXT_GENERATION_API_KEY", "key")
    arguments = ["chat", "--url", stub.url, "--system", "Hi", "--max-tokens", "5", "--temperature", "0", "--seed", "1"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{TEXT}\n"
    request = stub.requests[0]
    assert [request[name] for name in ("max_tokens", "temperature", "seed")] == [5, 0.0, 1]
    assert request["stream_options"] == {"include_usage": True}
    assert contents(stub) == [["Hi", "One?"]]


def test_failure_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\n"))
    monkeypatch.setattr("text_generation.transport.FIRST_BACKOFF", 0.0)
    # Port 1 of the loopback device: nothing listens there.
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 1
    assert re.fullmatch("error: .*is the server running\\?\n", capsys.readouterr().err)
    for url in ("", "ftp://host", "http://", "host:port"):
        assert main(["chat", "--url", url]) == 2
        assert capsys.readouterr().err == f"error: `--url` must be like http://host:port. Given: {url!r}\n"


@pytest.mark.parametrize("form", ["{0}", "http://{0}/", "http://{0}/v1", "{0}/v1/", "http://{0}/v1/chat/completions"])
def test_the_address_may_be_written_as_other_clients_need_it(
    stub: Stub, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\n"))
    assert main(["chat", "--url", form.format(stub.url.removeprefix("http://"))]) == 0
    assert capsys.readouterr().out == f"{TEXT}\n"


@pytest.mark.parametrize("models", [["org/model"], ["org/\x1b[2Jmodel", "other"], None])
def test_the_model_and_the_help_are_named_at_the_start(
    stub: Stub, models: list[str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.models = models
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["chat", "--url", stub.url]) == 0
    name = ", ".join(models or ["a model without a name"]).replace("\x1b", "")
    assert capsys.readouterr().err == f"{name} answers; /help lists the commands\n\n"


def run_command(
    stub: Stub, text: bytes, environment: dict[str, str], *arguments: str, **streams: Any
) -> subprocess.CompletedProcess[bytes]:
    """Runs the command in a process of its own, with streams as a shell makes them."""
    command = [sys.executable, "-m", "text_generation.cli", "chat", "--url", stub.url, *arguments]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    folder = Path(__file__).parents[1]
    return subprocess.run(command, input=text, env=os.environ | environment, cwd=folder, timeout=WAIT, **options)


def test_an_ascii_terminal_shows_what_it_can(stub: Stub) -> None:
    stub.script = [thoughtful(content="Zoë …")]
    ended = run_command(stub, "Wie heißt sie?\n".encode(), {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (ended.returncode, ended.stdout) == (0, b"Zo? ?\n")
    assert contents(stub) == [["Wie heißt sie?"]]


@pytest.mark.parametrize(("closed", "arguments"), [("stdout", []), ("stderr", []), ("stdout", ["--help"])])
def test_a_pipe_that_nobody_reads_ends_the_command_without_a_word(
    stub: Stub, closed: str, arguments: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = run_command(stub, b"One?\nTwo?\n", {}, *arguments, **{closed: writer})
    finally:
        os.close(writer)
    assert ended.returncode == 1 or arguments, "argparse minds no pipe"
    assert b"Traceback" not in (ended.stdout or b"") + (ended.stderr or b"")
    assert b"BrokenPipe" not in (ended.stderr or b"")


@pytest.mark.parametrize("proxy", ["host:port", "ftp://host", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_one_line(stub: Stub, proxy: str) -> None:
    ended = run_command(stub, b"One?\n", {"http_proxy": proxy, "all_proxy": proxy, "no_proxy": ""})
    assert ended.returncode == 2
    line = ended.stderr.decode()
    assert re.match("error: the environment names a proxy.*http_proxy", line)
    assert line.count("\n") == 1


def test_a_proxy_that_does_not_answer_is_named_without_its_password(stub: Stub) -> None:
    proxy = "http://user:secret@127.0.0.1:1"
    ended = run_command(stub, b"One?\n", {"http_proxy": proxy, "no_proxy": ""})
    line = ended.stderr.decode()
    assert (ended.returncode, line.count("\n")) == (1, 1)
    assert "is the proxy http://127.0.0.1:1 right?" in line
    assert "secret" not in line


def thoughtful(reason: str = "stop", **message: object) -> tuple[int, object]:
    """A stream in small pieces."""
    return 200, message_events(message_answer(reason, **message), 3)


@pytest.mark.parametrize(("notes", "dim", "plain"), [(Terminal, "\x1b[2m", "\x1b[22m"), (io.StringIO, "", "")])
def test_what_the_model_thinks_is_dimmed_in_a_terminal_and_no_answer(
    stub: Stub, notes: type[io.StringIO], dim: str, plain: str
) -> None:
    stub.script = [thoughtful(reasoning_content="Hm,\x1b[1mwell", content="Yes.")]
    _, out, noted = chat(stub.url, "One?", "Two?", notes=notes())
    assert out == f"Yes.\n{TEXT}\n"
    assert noted.startswith(f"{dim}Hm,{plain}{dim}[1{plain}{dim}mwe{plain}{dim}ll{plain}\n[2 tokens")
    assert contents(stub)[1] == ["One?", "Yes.", "Two?"]


def test_calls_of_tools_are_one_line_each_and_stay_in_the_conversation(stub: Stub) -> None:
    calls = [call(0, "weather", '{"city": "Paris"}'), call(1, "weather", '{"city":\n"Atlantis"}')]
    long = [call(2, "weather", json.dumps({"city": "x" * 200}))]
    stub.script = [
        thoughtful("tool_calls", content="I look.", tool_calls=calls),
        thoughtful("tool_calls", tool_calls=long),
    ]
    status, out, notes = chat(stub.url, "One?", "Two?", tools=ToolBox([weather]))
    assert (status, out) == (0, f"I look.\n{TEXT}\n{TEXT}\n")
    first, second, third, *_ = notes.splitlines()
    assert first == '[weather({"city": "Paris"}) -> sunny in Paris[2J]'
    assert second == '[weather({"city": "Atlantis"}) -> error: LookupError: no such city]'
    assert third.endswith("…]")
    assert len(third) < 230
    roles = [message["role"] for message in stub.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"]


def test_a_model_that_only_calls_tools_gets_no_end(stub: Stub) -> None:
    stub.script = [thoughtful("tool_calls", tool_calls=[call(0, "weather", '{"city": "Paris"}')]) for _ in range(10)]
    status, _, notes = chat(stub.url, "One?", tools=ToolBox([weather]))
    assert (status, len(stub.requests)) == (1, 10)
    assert "error: the model still calls tools in turn 10" in notes
    stub.requests.clear()
    assert chat(stub.url, "Two?", tools=ToolBox([weather]))[0] == 0
    assert contents(stub) == [["Two?"]]


def test_ctrl_c_stops_a_tool_and_forgets_its_call(stub: Stub) -> None:
    def hang() -> str:
        raise KeyboardInterrupt

    stub.script = [thoughtful("tool_calls", tool_calls=[call(0, "hang", "{}")])]
    status, _, notes = chat(stub.url, "One?", "Two?", tools=ToolBox([hang]))
    assert status == 0
    assert "stopped" in notes
    assert contents(stub)[1] == ["Two?"]


def test_the_command_lends_functions_and_a_schema(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "my_tools_of_a_test.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    (tmp_path / "my schema.json").write_text('{"type": "object"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\n"))
    stub.script = [thoughtful("tool_calls", tool_calls=[call(0, "add", '{"a": 1, "b": 2}')])]
    tools = "my_tools_of_a_test:add, platform:node"
    assert main(["chat", "--url", stub.url, "--tools", tools, "--schema", "my schema.json"]) == 0
    assert '\n[add({"a": 1, "b": 2}) -> 3]\n' in capsys.readouterr().err
    for request in stub.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == ["add", "node"]
        json_schema = {"name": "my_schema", "schema": {"type": "object"}, "strict": True}
        assert request["response_format"] == {"type": "json_schema", "json_schema": json_schema}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tools", "platform"], "module:function"),
        (["--tools", "platform:"], "module:function"),
        (["--tools", "no_such_module:f"], "cannot load no_such_module:f"),
        (["--tools", "platform:no_such_function"], "no_such_function"),
        (["--tools", "platform:node,platform:node"], "two functions"),
        (["--tools", "asyncio:sleep"], "is asynchronous"),
        (["--schema", "no_such_file.json"], "cannot read no_such_file.json"),
        (["--schema", "list.json"], "needs a JSON object"),
        (["--schema", "broken.json"], "cannot read broken.json"),
    ],
)
def test_wrong_arguments_of_the_command(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert main(["chat", *arguments]) == 2
    assert message in capsys.readouterr().err

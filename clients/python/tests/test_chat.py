"""The command `text-generation chat` against a server on the loopback device."""

from __future__ import annotations

import io
import re

import pytest
from stub import TEXT, WAIT, Stub, chat_events

from text_generation import Client, __version__
from text_generation.chat import Chat
from text_generation.cli import main
from text_generation.endpoints import ChatOptions


def chat(url: str, *lines: str, system: str | None = None, out: io.StringIO | None = None) -> tuple[int, str, str]:
    """Type the lines; returns exit status, answers and notes."""
    out, notes = out or io.StringIO(), io.StringIO()
    script = iter(lines)

    def read_line() -> str:
        line = next(script, None)
        if line is None:
            raise EOFError
        return line

    with Client(url, timeout=WAIT) as client:
        status = Chat(client, system, ChatOptions(max_tokens=9), out, notes).run(read_line)
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
    assert "is the server running?" in capsys.readouterr().err
    assert main(["chat", "--url", "127.0.0.1:3000"]) == 2
    assert "http://host:port" in capsys.readouterr().err

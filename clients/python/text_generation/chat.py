"""A chat in the terminal: answers stream in, and each is followed by a line with its speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TextIO

from text_generation.client import Client
from text_generation.endpoints import ChatOptions
from text_generation.errors import TextGenerationError
from text_generation.types import ChatCompletionChunk, Message

HELP = """/system TEXT  replace the system prompt (without TEXT: remove it)
/reset        forget the conversation
/exit         leave, as /quit and Ctrl-D do
Ctrl-C stops an answer; what came of it stays in the conversation."""

# Control characters, but for newline and tab: an answer must not be able to steer the terminal.
_CONTROLS = dict.fromkeys(set(range(0x20)) - {0x09, 0x0A} | set(range(0x7F, 0xA0)))


@dataclass
class Speed:
    """Counts the tokens of one answer and measures the time they took."""

    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    last: float = 0.0
    chunks: int = 0
    tokens: int | None = None

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Take note of a chunk that came in now."""
        if chunk.usage:
            self.tokens = chunk.usage.get("completion_tokens")
        if chunk.choices:
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.chunks += 1

    def __str__(self) -> str:
        """The line below an answer. Tokens are those the server counted; a chunk is at least one."""
        if self.first is None:
            return "no tokens"
        count, unit = (self.chunks, "chunks") if self.tokens is None else (self.tokens, "tokens")
        line = f"{count} {unit}, first after {self.first - self.started:.2f} s"
        if count > 1 and self.last > self.first:
            line += f", then {(count - 1) / (self.last - self.first):.1f} {unit}/s"
        return line


class Chat:
    """A conversation: the messages so far and where they are read from and written to."""

    def __init__(self, client: Client, system: str | None, options: ChatOptions, out: TextIO, notes: TextIO) -> None:
        """Begin a conversation.

        Args:
            client: Sends the messages. Whoever made it closes it.
            system: System prompt, if any.
            options: Arguments of `Client.chat` for every answer.
            out: Gets the answers.
            notes: Gets speeds, errors and help.
        """
        self._client = client
        self._system = system
        self._options = options
        self._out = out
        self._notes = notes
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """What the next request sends."""
        return [Message("system", self._system), *self._turns] if self._system else list(self._turns)

    def run(self, read_line: Callable[[], str]) -> int:
        """Answer every line until the input ends.

        Args:
            read_line: Returns the next line; raises `EOFError` at the end.

        Returns:
            Exit status: 1 if the last question got no answer.
        """
        status = 0
        while True:
            try:
                line = read_line().strip()
            except (EOFError, KeyboardInterrupt):
                self._note("")
                return status
            if line in ("/exit", "/quit"):
                return status
            if line.startswith("/"):
                self._command(line)
            elif line:
                status = 0 if self._ask(line) else 1

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/reset":
            self._turns.clear()
        elif name == "/system":
            self._system = argument.strip() or None
        else:
            self._note(HELP)

    def _ask(self, question: str) -> bool:
        """Stream the answer; a question without one does not stay in the conversation."""
        self._turns.append(Message("user", question))
        speed = Speed()
        parts: list[str] = []
        error: TextGenerationError | None = None
        try:
            self._stream(speed, parts)
        except TextGenerationError as caught:
            error = caught
        except KeyboardInterrupt:
            self._note("\nstopped")
        self._out.write("\n")
        self._out.flush()
        if parts:
            self._turns.append(Message("assistant", "".join(parts)))
        else:
            self._turns.pop()
        self._note(f"error: {error}" if error else f"[{speed}]")
        return error is None

    def _stream(self, speed: Speed, parts: list[str]) -> None:
        """Write the answer as it comes, and collect it in `parts`."""
        chunks = self._client.chat(self.messages, stream=True, **self._options)
        # Closed whatever happens: that is what stops the generation in the server.
        with closing(chunks):
            for chunk in chunks:
                speed.add(chunk)
                for choice in chunk.choices:
                    text = (choice.delta.content or "").translate(_CONTROLS)
                    parts.append(text)
                    self._out.write(text)
                    self._out.flush()

    def _note(self, text: str) -> None:
        self._notes.write(text + "\n")
        self._notes.flush()

"""Display of a chat in the terminal: answers on one stream, everything else on another."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TextIO

from text_generation.types import ChatCompletionChunk, ChoiceDelta, Message, ToolCall

LONGEST = 100
"""Characters that a line about a call shows of its arguments, and of its result."""

# Control characters, but for newline and tab: an answer must not be able to steer the terminal.
_CONTROLS = dict.fromkeys(set(range(0x20)) - {0x09, 0x0A} | set(range(0x7F, 0xA0)))
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


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


class Screen:
    """Writes a chat, without what could steer the terminal.

    Answers go to `out` alone, so that they can be kept in a file; what the model thinks, calls of tools, speeds and
    errors go to `notes`.
    """

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        """Write to these."""
        self._out = out
        self._notes = notes
        self._dim, self._plain = (_DIM, _PLAIN) if notes.isatty() else ("", "")
        self._thinking = False
        self._answering = False

    def delta(self, delta: ChoiceDelta) -> None:
        """Show what a chunk adds to an answer; what the model thinks is dimmed."""
        if delta.reasoning_content:
            self._thinking = True
            self._put(self._notes, f"{self._dim}{delta.reasoning_content.translate(_CONTROLS)}{self._plain}")
        if delta.content:
            self._end_thinking()
            self._answering = True
            self._put(self._out, delta.content.translate(_CONTROLS))

    def end(self) -> None:
        """End the line of an answer, or of one that did not come."""
        self._end_thinking()
        self._put(self._out, "\n")
        self._answering = False

    def call(self, call: ToolCall, result: Message) -> None:
        """Show a call of a tool with its result, in one line."""
        self._end_thinking()
        if self._answering:
            self.end()
        self.note(f"[{_line(call.name)}({_line(call.arguments)}) -> {_line(str(result.content))}]")

    def note(self, text: str) -> None:
        """Show a line that is not of the answer."""
        self._put(self._notes, text.translate(_CONTROLS) + "\n")

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self.note("")

    def _put(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


def _line(text: str) -> str:
    """`text` in one line of bounded length."""
    line = " ".join(text.split()).translate(_CONTROLS)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"

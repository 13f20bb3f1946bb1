"""Whole answers from the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from text_generation.types import (
    ChatComplete,
    ChatCompletionChunk,
    ChatCompletionComplete,
    Choice,
    ChoiceDeltaToolCall,
    Message,
    ToolCall,
)


def join_chunks(chunks: Iterable[ChatCompletionChunk]) -> ChatComplete:
    """What `chat` would have answered, from all chunks of `chat(stream=True)`; see `ChunkJoiner`."""
    joiner = ChunkJoiner()
    for chunk in chunks:
        joiner.add(chunk)
    return joiner.answer()


class ChunkJoiner:
    """Joins chunks as they come. Not for several threads at once.

    >>> joiner = ChunkJoiner()
    >>> for chunk in client.chat([{"role": "user", "content": "What is the capital of France?"}], stream=True):
    ...     joiner.add(chunk)
    >>> joiner.answer().message.content
    ' Paris.'
    """

    def __init__(self) -> None:
        """Begin with no chunks."""
        self._answer = ChatComplete(id="", object="chat.completion", created=0, model="")
        self._choices: dict[int, _JoinedChoice] = {}

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Take the next chunk."""
        answer = self._answer
        answer.id, answer.created, answer.model = chunk.id, chunk.created, chunk.model
        answer.system_fingerprint = chunk.system_fingerprint
        answer.usage = chunk.usage or answer.usage
        for choice in chunk.choices:
            self._choices.setdefault(choice.index, _JoinedChoice()).add(choice)

    def answer(self) -> ChatComplete:
        """The answer as far as it came; a choice that has not ended has no `finish_reason`."""
        choices = [choice.complete(index) for index, choice in sorted(self._choices.items())]
        head = self._answer
        return ChatComplete(
            head.id, head.object, head.created, head.model, head.system_fingerprint, choices, usage=head.usage
        )


@dataclass
class _JoinedChoice:
    """One answer of the model, in pieces."""

    role: str = "assistant"
    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: dict[int, _JoinedCall] = field(default_factory=dict[int, "_JoinedCall"])
    logprobs: Any = None
    finish_reason: str | None = None

    def add(self, choice: Choice) -> None:
        delta = choice.delta
        self.role = delta.role or self.role
        self.content.append(delta.content or "")
        self.reasoning.append(delta.reasoning_content or "")
        for call in delta.tool_calls or ():
            self.calls.setdefault(call.index, _JoinedCall()).add(call)
        self.logprobs = _join_logprobs(self.logprobs, choice.logprobs)
        self.finish_reason = choice.finish_reason or self.finish_reason

    def complete(self, index: int) -> ChatCompletionComplete:
        calls = [call.complete() for _, call in sorted(self.calls.items())]
        content = "".join(self.content)
        message = Message(
            role=self.role,
            # As servers answer without a stream: null where there are calls and nothing else.
            content=None if calls and not content else content,
            tool_calls=calls or None,
            reasoning_content="".join(self.reasoning) or None,
        )
        return ChatCompletionComplete(index, message, self.logprobs, self.finish_reason)


@dataclass
class _JoinedCall:
    """One call of a tool, in pieces."""

    id: str = ""
    type: str = "function"
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def add(self, call: ChoiceDeltaToolCall) -> None:
        self.id = call.id or self.id
        self.type = call.type or self.type
        self.name = call.function.name or self.name
        self.arguments.append(call.function.arguments)

    def complete(self) -> ToolCall:
        return ToolCall(self.id, self.type, {"name": self.name, "arguments": "".join(self.arguments)})


def _join_logprobs(known: Any, new: Any) -> Any:
    """Log-probabilities are objects whose lists, such as `content`, go on from chunk to chunk."""
    if known is None or new is None:
        return known or new
    joined = dict(cast("dict[str, Any]", known))
    for key, value in cast("dict[str, Any]", new).items():
        old = joined.get(key)
        joined[key] = [*old, *value] if old and value else old or value
    return joined

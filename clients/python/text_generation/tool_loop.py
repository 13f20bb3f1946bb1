"""Turns of a model that calls Python functions until it answers. Nothing here does any input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from text_generation.endpoints import ChatOptions, Messages
from text_generation.errors import TurnLimitError, ValidationError
from text_generation.tools import ToolBox
from text_generation.types import ChatComplete, Message, ToolCall

if TYPE_CHECKING:
    from text_generation.structured import Model

MAX_TURNS = 10


@dataclass
class ToolRun:
    """What `run_tools` returns.

    Attributes:
        answer: The last answer of the model, the one without calls.
        messages: The whole conversation: what was sent, calls, their results, and the last answer.
    """

    answer: ChatComplete
    messages: list[Message | dict[str, Any]]

    def parse(self, model: type[Model]) -> Model:
        """The answer as an instance of a pydantic model; see `ChatComplete.parse`."""
        return self.answer.parse(model)


class ToolLoop:
    """The state between two turns. Ask with `messages` and `options`, `take` the answer, `give` results of its calls.

    Attributes:
        messages: The conversation for the next request; a call is in it once its result is.
        options: Arguments of `chat` for the next request.
    """

    def __init__(self, messages: Messages, toolbox: ToolBox, options: ChatOptions, max_turns: int = MAX_TURNS) -> None:
        """Begin with a question.

        Args:
            messages: The conversation up to the question; it is copied.
            toolbox: What the model may call; may be empty.
            options: Arguments of `chat` but for `tools`.
            max_turns: Largest number of requests.

        Raises:
            ValidationError: `max_turns` is less than 1, or more than one answer is asked for.
        """
        if max_turns < 1:
            raise ValidationError(f"`max_turns` must be at least 1. Given: {max_turns}")
        if (options.get("n") or 1) > 1:
            raise ValidationError("`n` must be 1 where tools are run")
        self.messages: list[Message | dict[str, Any]] = list(messages)
        self.options: ChatOptions = {**options}
        if definitions := toolbox.definitions:
            self.options["tools"] = definitions
        self._max_turns = max_turns
        self._turns = 0
        self._asked: Message | None = None

    def take(self, answer: ChatComplete) -> list[ToolCall]:
        """The calls to carry out before the next request; none if this is the last answer.

        Calls of an answer that reached its largest number of tokens are not whole, and are left alone.

        Raises:
            TurnLimitError: The model calls tools in the last turn.
        """
        self._turns += 1
        choice, message = answer.choice, answer.message
        calls = message.tool_calls or []
        if not calls or choice.finish_reason == "length":
            return []
        if self._turns == self._max_turns:
            raise TurnLimitError(
                f"the model still calls tools in turn {self._turns}; raise `max_turns`", messages=self.messages
            )
        self._asked = message
        return calls

    def give(self, results: Sequence[Message]) -> None:
        """Keep the calls of the last answer with their results, in the order of the calls."""
        if self._asked is not None:
            self.messages += [self._asked, *results]
            self._asked = None
        if "tool_choice" in self.options:
            self.options["tool_choice"] = _free_choice(self.options["tool_choice"])


def _free_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A choice that forces a call holds for the first turn only: the model could never answer."""
    if isinstance(choice, dict) and isinstance(choice.get("allowed_tools"), dict):
        return {**choice, "allowed_tools": {**cast("dict[str, Any]", choice["allowed_tools"]), "mode": "auto"}}
    return choice if choice in (None, "none") else "auto"

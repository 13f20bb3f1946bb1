"""Python functions as tools: what the model is told of them, and calls of the model carried out."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from text_generation.errors import MissingDependencyError, TextGenerationError, ValidationError
from text_generation.types import Message, Tool, ToolCall

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FunctionTool:
    """A Python function that a model may call.

    The model is told its name, its docstring, and the JSON schema of its parameters, which comes from their
    annotations and defaults; `Annotated[str, pydantic.Field(description="...")]` describes a parameter.

    Attributes:
        name: Name of the function.
        is_async: Whether calls return coroutines.
        definition: What the model is told.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read name, docstring and annotations.

        Raises:
            ValidationError: The function has no name, or parameters that have no names or are no JSON values.
            MissingDependencyError: pydantic is not installed.
        """
        try:
            from text_generation import json_schema
        except ImportError as error:
            raise MissingDependencyError("functions as tools need pydantic: pip install pydantic") from error
        self.name = str(getattr(function, "__name__", ""))
        if not callable(function) or not _NAME.fullmatch(self.name):
            raise ValidationError(f"`tools` takes functions that have a name. Given: {function!r}")
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments = json_schema.Arguments(function)
        self._text_of = json_schema.text_of
        described: dict[str, Any] = {"name": self.name, "parameters": self._arguments.schema}
        if description := inspect.getdoc(function):
            described["description"] = description
        self.definition = Tool("function", described)

    def call(self, call: ToolCall) -> str:
        """The result of a call, as text for the model. Raises whatever the function raises."""
        return self._text_of(self._arguments.call(call.arguments))

    async def call_async(self, call: ToolCall) -> str:
        """As `call`; a function that is not asynchronous runs in a thread."""
        if self.is_async:
            return self._text_of(await self._arguments.call(call.arguments))
        return await asyncio.to_thread(self.call, call)


class ToolBox:
    """Functions by name. What goes wrong in a call is text for the model, which may then do better."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Read the functions; errors as in `FunctionTool`, and `ValidationError` for two of one name."""
        self._tools: dict[str, FunctionTool] = {}
        for function in functions:
            tool = FunctionTool(function)
            if tool.name in self._tools:
                raise ValidationError(f"`tools` has two functions with the name `{tool.name}`")
            self._tools[tool.name] = tool

    @property
    def definitions(self) -> list[Tool]:
        """What the model is told."""
        return [tool.definition for tool in self._tools.values()]

    def check_blocking(self) -> None:
        """Refuse asynchronous functions, which a blocking client cannot await; raises `ValidationError`."""
        for tool in self._tools.values():
            if tool.is_async:
                raise ValidationError(f"the tool `{tool.name}` is asynchronous: use `AsyncClient`")

    def run(self, call: ToolCall) -> Message:
        """Carry out a call; returns the message with its result, or with what went wrong."""
        try:
            return _result(call, self._find(call).call(call))
        except Exception as error:  # A function may raise anything; the model is told.
            return _result(call, _failure(error))

    async def run_async(self, call: ToolCall) -> Message:
        """As `run`, for functions of either kind."""
        try:
            return _result(call, await self._find(call).call_async(call))
        except Exception as error:  # As above.
            return _result(call, _failure(error))

    def _find(self, call: ToolCall) -> FunctionTool:
        tool = self._tools.get(call.name)
        if tool is None:
            raise ValidationError(f"there is no tool `{call.name}`, only {', '.join(self._tools) or 'none'}")
        return tool


def _result(call: ToolCall, text: str) -> Message:
    return Message("tool", text, name=call.name, tool_call_id=call.id)


def _failure(error: Exception) -> str:
    is_ours = isinstance(error, TextGenerationError)
    return f"error: {error}" if is_ours else f"error: {type(error).__name__}: {error}"

"""Structured output: the form that an answer must have, and the answer read into a pydantic model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from text_generation.errors import InvalidAnswerError, ValidationError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)


def is_model(value: object) -> TypeGuard[type[BaseModel]]:
    """Whether `value` is a pydantic model; that is seen without importing pydantic."""
    return isinstance(value, type) and hasattr(value, "model_json_schema") and hasattr(value, "model_validate_json")


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of what `model` reads, where each object has the fields of its class and no others."""
    from text_generation import json_schema

    return json_schema.schema_of(model)


def json_schema_format(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The `response_format` that holds an answer to a schema, and refuses a schema that cannot be enforced."""
    allowed = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:64]
    return {"type": "json_schema", "json_schema": {"name": allowed or "answer", "schema": schema, "strict": True}}


def response_format_of(value: Any) -> Any:
    """`response_format` as it is sent: a pydantic model becomes its strict JSON schema.

    Raises:
        ValidationError: `value` is a class that is no pydantic model.
    """
    if is_model(value):
        return json_schema_format(value.__name__, schema_of(value))
    if isinstance(value, type):
        raise ValidationError(f"`response_format` must be a pydantic model, a dictionary or a Grammar. Given: {value}")
    return value


def parse(model: type[Model], text: str | None, *, cut: bool = False) -> Model:
    """Read the text of an answer into `model`.

    Args:
        model: A pydantic model.
        text: The whole answer, JSON.
        cut: Whether the answer ended because it reached its largest number of tokens; the error says so.

    Raises:
        InvalidAnswerError: The text is not what the model describes.
    """
    try:
        return model.model_validate_json(text or "")
    except ValueError as error:
        hint = "; it was cut off, so allow more tokens" if cut else ""
        message = f"the answer is no {model.__name__}{hint}: {error}"
        raise InvalidAnswerError(message, text=text or "") from error

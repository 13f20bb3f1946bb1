"""Use of pydantic: JSON schemas of models and of functions, calls of functions with JSON.

pydantic is an optional dependency, so this module is imported only where one of these is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic import ValidationError as ArgumentError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_json
from typing_extensions import override

from text_generation.errors import ValidationError


class PlainSchema(GenerateJsonSchema):
    """Schemas without titles of fields, which cost tokens and tell a model nothing, and with closed objects.

    A closed object has no properties but those of its class: pydantic would drop others when it reads an answer.
    """

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        """No field has a title."""
        return False

    @override
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Schema of a model."""
        return _closed(super().model_schema(schema))

    @override
    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Schema of a dataclass."""
        return _closed(super().dataclass_schema(schema))

    @override
    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Schema of a `TypedDict`."""
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of what `model` reads."""
    return model.model_json_schema(schema_generator=PlainSchema)


class Arguments:
    """The arguments of a function, as JSON.

    Attributes:
        schema: JSON schema of the object with the arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the annotations of `function`.

        Raises:
            ValidationError: A parameter cannot be an argument with a name and a JSON value.
        """
        try:
            # An adapter of a function calls it with what it validates, as `validate_call` does.
            self._adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", function))
            self.schema = self._adapter.json_schema(schema_generator=PlainSchema)
        except (PydanticUserError, PydanticUndefinedAnnotation, NameError) as error:
            reason = str(error).partition("\n")[0]
            raise ValidationError(f"{function!r} cannot be a tool: {reason}") from error
        if self.schema.get("type") != "object":
            raise ValidationError(f"{function!r} cannot be a tool: its parameters need names, without `*` and `/`")

    def call(self, arguments: str) -> Any:
        """Call the function with the JSON text of its arguments; returns what it returns, or a coroutine of that.

        Raises:
            ValueError: The arguments are not what the function takes.
            Exception: Whatever the function raises.
        """
        try:
            return self._adapter.validate_json(arguments or "{}")
        except ArgumentError as error:
            raise ValueError(problems(error)) from error


def problems(error: ArgumentError) -> str:
    """What is wrong and where, in one line, without the wrong values."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    lines = ((".".join(str(part) for part in detail["loc"]), detail["msg"]) for detail in details)
    return "; ".join(f"{place}: {message}" if place else message for place, message in lines)


def text_of(value: Any) -> str:
    """What a model reads of the result of a function: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()

"""Dataclasses to JSON and back.

Reading is tolerant: unknown keys are ignored, and null counts as a missing key, so that a newer or an older server
does not break a client. Writing leaves out what is None, for servers that refuse null.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from text_generation.errors import UnknownError

T = TypeVar("T")
Decoder = Callable[[Any], Any]


def encode(value: Any) -> Any:
    """The JSON value of `value`. Keys of plain dictionaries stay as they are, None included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: encode(item) for name, item in pairs if item is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def decode(cls: type[T], data: Any) -> T:
    """Read an instance of the dataclass `cls` from a JSON value.

    Raises:
        UnknownError: `data` is not an object, lacks a required key, or has a value that is not in an enumeration.
    """
    return _decoder(cls)(data)


@cache
def _decoder(hint: Any) -> Decoder:
    arguments = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _object_decoder(cast("type[Any]", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    if get_origin(hint) is list:
        return _list_decoder(_decoder(arguments[0]))
    if get_origin(hint) in (Union, types.UnionType):
        variants = [argument for argument in arguments if argument is not type(None)]
        return _decoder(variants[0]) if len(variants) == 1 else _as_it_is
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _list_decoder(item: Decoder) -> Decoder:
    def decode_list(values: Any) -> Any:
        if not isinstance(values, list):
            raise UnknownError(f"unexpected answer: a list was expected, not {type(values).__name__}")
        return [item(value) for value in cast("list[Any]", values)]

    return decode_list


def _enum_decoder(cls: type[Enum]) -> Decoder:
    def decode_enum(value: Any) -> Enum:
        try:
            return cls(value)
        except ValueError as error:
            raise UnknownError(f"unexpected answer: {value!r} is no {cls.__name__}") from error

    return decode_enum


def _object_decoder(cls: type[Any]) -> Decoder:
    hints = get_type_hints(cls)
    fields = [(field.name, _decoder(hints[field.name])) for field in dataclasses.fields(cls)]
    missing = dataclasses.MISSING
    required = [
        field.name for field in dataclasses.fields(cls) if field.default is missing and field.default_factory is missing
    ]

    def decode_object(data: Any) -> Any:
        if not isinstance(data, dict):
            raise UnknownError(f"unexpected answer: an object was expected for {cls.__name__}")
        present = {key: value for key, value in cast("dict[str, Any]", data).items() if value is not None}
        for name in required:
            if name not in present:
                raise UnknownError(
                    f"unexpected answer: {cls.__name__} lacks `{name}`; is this a text-generation server?"
                )
        return cls(**{name: decoder(present[name]) for name, decoder in fields if name in present})

    return decode_object

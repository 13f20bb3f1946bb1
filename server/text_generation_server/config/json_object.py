"""Typed reading of untrusted JSON objects: every wrong value is a `ConfigurationError` that names file and key."""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

from ..errors import ConfigurationError, ModelFilesError
from .pointer import refuse_pointer

_LARGEST_NUMBER = sys.float_info.max
_Option = TypeVar("_Option")


class JsonObject:
    """A JSON object with the name of its source; `null` counts as absent."""

    def __init__(
        self,
        values: Mapping[str, object],
        source: str,
        defaults: Mapping[str, object] | None = None,
        aliases: Mapping[str, str] | None = None,
        unread: Collection[str] = (),
        asked: set[tuple[str, str]] | None = None,
    ) -> None:
        self._values = values if not unread else {key: values[key] for key in values if key not in unread}
        self._source = source
        self._defaults = defaults or {}
        self._aliases = aliases or {}
        self._unread = unread
        self._asked: set[tuple[str, str]] = set() if asked is None else asked

    def for_family(
        self,
        defaults: Mapping[str, object],
        aliases: Mapping[str, str],
        older: Mapping[str, str] | None = None,
        unread: Collection[str] = (),
    ) -> "JsonObject":
        """Returns the same object with `defaults` for absent keys (`null` is not absent here), and without the keys in
        `unread`, nested ones included. `aliases` and `older` map a key to another name that the file may use: where the
        file has both, the alias wins over the key, and the key wins over the older name.
        """
        names = {key: name for key, name in (older or {}).items() if key not in self._values}
        return JsonObject(self._values, self._source, defaults, {**aliases, **names}, unread, self._asked)

    def with_values(self, values: Mapping[str, object]) -> "JsonObject":
        """Returns the same object with other values for some keys."""
        return JsonObject({**self._values, **values}, self._source)

    @classmethod
    def from_file(cls, path: Path) -> "JsonObject":
        """Reads a file whose top level must be an object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"), object_hook=_infinite)
        except OSError as error:
            raise ModelFilesError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            refuse_pointer(path)
            raise ModelFilesError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise ModelFilesError(f"{path} must hold a JSON object")
        return cls(cast("dict[str, object]", values), str(path))

    def __contains__(self, key: str) -> bool:
        return self._get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def never_asked(self) -> list[str]:
        """Keys that are there and that nobody has asked for, of this object or another one for the same place."""
        return [
            key for key, value in self._values.items() if value is not None and (self._source, key) not in self._asked
        ]

    def plain(self) -> dict[str, object]:
        """Returns the values of the file."""
        return dict(self._values)

    @property
    def source(self) -> str:
        """The name of the place it came from."""
        return self._source

    def error(self, key: str, expected: str) -> ConfigurationError:
        """Returns the error for a wrong value of `key`."""
        value = self._get(key)
        return ConfigurationError(f"{self._source}: `{self._name(key)}` must be {expected}, not {value!r}")

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """Reads a whole number from `minimum` to `maximum`; it is required without a default."""
        value = self._value(key, default)
        # Some exporters write whole numbers as 4096.0.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, f"an integer of at least {minimum}")
        if value > maximum:
            raise self.error(key, f"an integer of at most {maximum}")
        return value

    def number(
        self, key: str, default: float | None = None, above: float = 0.0, maximum: float = _LARGEST_NUMBER
    ) -> float:
        """Reads a finite number above `above`, at most `maximum`; it is required without a default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value <= maximum:
            limit = f", at most {maximum:g}" if maximum < _LARGEST_NUMBER else ""
            raise self.error(key, f"a number above {above:g}{limit}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Reads a number above 0, or None when absent."""
        return self.number(key) if key in self else None

    def boolean(self, key: str, default: bool) -> bool:
        """Reads true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        """Reads a string; it is required without a default."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def child(self, key: str) -> "JsonObject":
        """Reads the object under `key`, or an empty one."""
        value = self._get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        source = f"{self._source}, `{self._name(key)}`"
        return JsonObject(cast("dict[str, object]", value), source, unread=self._unread, asked=self._asked)

    def children(self, key: str, length: int) -> tuple["JsonObject", ...]:
        """A list of `length` objects."""
        value = self._value(key, None)
        items = cast("list[object]", value) if isinstance(value, list) else []
        if len(items) != length or not all(isinstance(item, dict) for item in items):
            raise self.error(key, f"a list of {length} objects")
        names = (f"{self._source}, `{self._name(key)}[{index}]`" for index in range(length))
        objects = cast("list[dict[str, object]]", items)
        return tuple(JsonObject(*each, unread=self._unread) for each in zip(objects, names, strict=True))

    def strings(self, key: str) -> tuple[str, ...]:
        """Reads a list of strings, empty when absent."""
        value = self._get(key) or []
        if not isinstance(value, list):
            raise self.error(key, "a list of strings")
        items = cast("list[object]", value)
        names = tuple(item for item in items if isinstance(item, str))
        if len(names) != len(items):
            raise self.error(key, "a list of strings")
        return names

    def array(self, key: str) -> list[object]:
        """Reads a list of anything; it is required without a default."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self.error(key, "a list")
        return cast("list[object]", value)

    def numbers(self, key: str, length: int, zero: bool = False) -> tuple[float, ...]:
        """Reads a list of `length` finite numbers above 0, or of at least 0 with `zero`."""
        value = self._value(key, None)
        items = cast("list[object]", value) if isinstance(value, list) else []
        numbers = tuple(
            float(item)
            for item in items
            if isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item <= _LARGEST_NUMBER
        )
        if len(numbers) != len(items) or len(items) != length or (not zero and 0 in numbers):
            raise self.error(key, f"a list of {length} numbers {'of at least' if zero else 'above'} 0")
        return numbers

    def integers(self, key: str, length: int, maximum: int) -> tuple[int, ...]:
        """Reads a list of `length` whole numbers from 0 to `maximum`."""
        value = self._value(key, None)
        items = cast("list[object]", value) if isinstance(value, list) else []
        integers = tuple(item for item in items if isinstance(item, int) and 0 <= item <= maximum)
        if len(integers) != len(items) or len(items) != length:
            raise self.error(key, f"a list of {length} numbers from 0 to {maximum}")
        return integers

    def integer_or_list(self, key: str, default: tuple[int, ...], minimum: int, maximum: int) -> tuple[int, ...]:
        """Reads whole numbers from `minimum` to `maximum`: a list of any length, or a single one."""
        value = self._get(key)
        if value is None:
            return default
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        integers = tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))
        if len(integers) != len(items) or not all(minimum <= item <= maximum for item in integers):
            raise self.error(key, f"whole numbers from {minimum} to {maximum}")
        return integers

    def layer_numbers(self, key: str, count: int) -> tuple[int, ...]:
        """Reads a list of numbers of layers, of which there are `count`."""
        value = self._value(key, None)
        length = len(cast("list[object]", value)) if isinstance(value, list) else -1
        return self.integers(key, length, count - 1)

    def integer_each(self, key: str, count: int, **options: int) -> tuple[int, ...]:
        """Reads a whole number for each of `count` layers: a list, or one number for all. `options` are those of
        `integer`.
        """
        value = self._get(key)
        if not isinstance(value, list):
            return (self.integer(key, **options),) * count
        items = cast("list[object]", value)
        if len(items) != count:
            raise self.error(key, f"one integer, or a list of {count}")
        return tuple(JsonObject({key: item}, self._source).integer(key, **options) for item in items)

    def choice(self, key: str, options: Mapping[str, _Option], default: str | None = None) -> _Option:
        """Returns the value of `options` for the string under `key`."""
        name = self.string(key, default)
        if name not in options:
            raise self.error(key, f"one of {', '.join(options)}")
        return options[name]

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Reads one id or a list of ids; none when absent."""
        value = self._get(key)
        if value is None:
            return ()
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        ids = tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
        if len(ids) != len(items):
            raise self.error(key, "a token id or a list of token ids")
        return ids

    def _value(self, key: str, default: object) -> object:
        value = self._get(key)
        if value is not None:
            return value
        if default is None:
            raise ConfigurationError(f"{self._source}: `{self._name(key)}` is missing")
        return default

    def _name(self, key: str) -> str:
        """Returns the name under which the file has the key, or should have it."""
        alias = self._aliases.get(key, key)
        return key if key in self._values and alias not in self._values else alias

    def _get(self, key: str) -> object:
        name = self._name(key)
        self._asked.add((self._source, name))
        if name in self._values:
            return self._values[name]
        return self._defaults.get(name, self._defaults.get(key))


def _infinite(values: dict[str, object]) -> object:
    """Converts the objects with which Transformers 5 writes infinite numbers, which JSON lacks."""
    return float(str(values["__float__"])) if values.keys() == {"__float__"} else values

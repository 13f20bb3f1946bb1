"""JSON of results with a row a line instead of a figure a line.

    python benchmark/compact.py benchmark/results/*.json

writes files again in this way; the programs beside it write theirs so at once.
"""

import argparse
import json
from pathlib import Path
from typing import Any

WIDTH = 320
"""A table of at most so many characters stays on a line."""


def dumps(value: Any) -> str:
    """`value` as JSON text that ends with a line break: a line for each key, and for each row of a table, which is an
    object or a list that holds nothing but objects and lists.
    """
    return _text(json.loads(json.dumps(value)), "", outermost=True) + "\n"


def _text(value: Any, indent: str, outermost: bool = False) -> str:
    if not value or not isinstance(value, dict | list) or not (outermost or _holds_table(value)):
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _text(each, inner) for each in value) + f"\n{indent}]"
    parts = (f"{inner}{json.dumps(key)}: {_text(each, inner)}" for key, each in value.items())
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def _holds_table(value: Any) -> bool:
    """Whether a table is in it that is too long for a line."""
    if not isinstance(value, dict | list) or len(json.dumps(value)) <= WIDTH:
        return False
    parts = list(value.values()) if isinstance(value, dict) else value
    return all(isinstance(each, dict | list) for each in parts) or any(map(_holds_table, parts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    for path in parser.parse_args().files:
        path.write_text(dumps(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")

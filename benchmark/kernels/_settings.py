"""Data files of launch settings, as programs that measure them write them."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any


def replace_settings(
    operator: str, entries: Sequence[Mapping[str, Any]], replaced: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Puts `entries` into the data file of `operator`, a line each, instead of those whose key is `replaced`."""
    with resources.as_file(resources.files("text_generation_kernels") / "tuned" / f"{operator}.json") as path:
        others = [each for each in json.loads(path.read_text(encoding="utf-8")) if not replaced(each["key"])]
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in [*entries, *others])
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")

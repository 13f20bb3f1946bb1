"""Data files of launch settings, as the tuning scripts write them."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any


def replace_settings(
    operator: str, entries: Sequence[Mapping[str, Any]], replaced: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Replaces the entries whose key is `replaced` in the data file of `operator` by `entries`, a line each."""
    with resources.as_file(resources.files("text_generation_kernels") / "tuned" / f"{operator}.json") as path:
        others = [each for each in json.loads(path.read_text(encoding="utf-8")) if not replaced(each["key"])]
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in [*entries, *others])
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")

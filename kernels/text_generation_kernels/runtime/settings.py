"""Tuned launch settings of Triton kernels, from data files that are measured offline: nothing is tuned while serving.

`tuned/<operator>.json` is a list of `{"key": {...}, "config": {...}}`. A key names sizes (all of one file name the same
ones), a config the launch settings. The entry with the nearest sizes, as ratios, is used, so every size has one. Sizes
count in the order of the arguments: a head size decides before a length does, or a short prompt would get the tile of
another head size, which may not fit. Operators that need much shared memory name that of the card first (`shared_kib`):
entries for 227 are measured on an H200; those for less are chosen to fit and are not measured.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TypedDict


class _Entry(TypedDict):
    key: dict[str, int]
    config: dict[str, int]


@cache
def _entries(operator: str) -> list[_Entry]:
    return json.loads(
        (resources.files(__name__.partition(".")[0]) / "tuned" / f"{operator}.json").read_text(encoding="utf-8")
    )


@cache
def nearest(operator: str, **sizes: int) -> Mapping[str, int]:
    """Launch settings of `operator` for `sizes` (each at least 1), the most decisive first."""

    def distance(entry: _Entry) -> list[float]:
        return [abs(math.log2(size / entry["key"][name])) for name, size in sizes.items()]

    return MappingProxyType(min(_entries(operator), key=distance)["config"])

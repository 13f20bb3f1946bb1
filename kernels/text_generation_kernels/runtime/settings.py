"""Tuned launch settings of Triton kernels, from data files that are measured offline: nothing is tuned while serving.

`tuned/<operator>.json` is a list of `{"key": {...}, "config": {...}}`. A key names sizes (all of one file name the same
ones), a config the launch settings; `"faster": "<kernel>"` in its place says that another kernel was measured to be at
least as fast. The entry with the nearest sizes, as ratios, is used, so every size has one. Sizes count in the order of
the arguments: a head size decides before a length does, or a short prompt would get the tile of
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


class _Key(TypedDict):
    key: dict[str, int | bool]


class _Entry(_Key, total=False):
    """One of both."""

    config: dict[str, int]
    faster: str


@cache
def _entries(operator: str) -> list[_Entry]:
    return json.loads(
        (resources.files(__name__.partition(".")[0]) / "tuned" / f"{operator}.json").read_text(encoding="utf-8")
    )


@cache
def fastest(operator: str, **sizes: int | bool) -> Mapping[str, int] | str:
    """Launch settings of `operator` for `sizes` (each at least 1, or a truth value), the most decisive first; or the
    name of the kernel that is at least as fast.
    """

    def distance(entry: _Entry) -> list[float]:
        return [_distance(size, entry["key"][name]) for name, size in sizes.items()]

    entry = min(_entries(operator), key=distance)
    return entry["faster"] if "faster" in entry else MappingProxyType(entry.get("config", {}))


def _distance(size: int | bool, measured: int | bool) -> float:
    if isinstance(measured, bool):
        return float(size is not measured)
    return abs(math.log2(size / measured))


@cache
def nearest(operator: str, **sizes: int | bool) -> Mapping[str, int]:
    """Launch settings of an operator whose data file names no other kernel."""
    settings = fastest(operator, **sizes)
    if isinstance(settings, str):
        raise TypeError(f"{operator}.json names another kernel, {settings}: ask for `fastest`")
    return settings

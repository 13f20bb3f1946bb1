"""Data files of launch settings, and the choice of variants that are compiled, for the tuning scripts."""

import itertools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

Variant = tuple[int, ...]
"""Values of launch settings, each combination of which is compiled once."""
Times = dict[Variant, dict[int, float]]
"""Microseconds by variant and number of splits."""
MatrixT = TypeVar("MatrixT", bound=Hashable)


def replace_settings(
    operator: str,
    entries: Sequence[Mapping[str, Any]],
    replaced: Callable[[Mapping[str, Any]], bool] | None = None,
) -> None:
    """Replaces the entries whose key is `replaced` in the data file of `operator` by `entries`, a line each. Without
    `replaced`, those with the same keys.
    """
    keys = [entry["key"] for entry in entries]
    replaced = replaced or (lambda key: key in keys)
    with resources.as_file(resources.files("text_generation_kernels") / "tuned" / f"{operator}.json") as path:
        others = [each for each in json.loads(path.read_text(encoding="utf-8")) if not replaced(each["key"])]
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in [*entries, *others])
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def best_variants(times: Mapping[MatrixT, Times], most: int) -> tuple[Variant, ...]:
    """At most so many variants: those with the smallest sum of times, each as a ratio to the best of its matrix."""
    best = {matrix: least(by_variant) for matrix, by_variant in times.items()}
    variants = sorted({variant for by_variant in times.values() for variant in by_variant})

    def cost(some: tuple[Variant, ...]) -> float:
        return sum(
            min(min(by_variant.get(variant, {0: 1e9}).values()) for variant in some) / best[matrix]
            for matrix, by_variant in times.items()
        )

    return min(itertools.combinations(variants, min(most, len(variants))), key=cost)


def least(times: Times) -> float:
    """The best time of a matrix."""
    return min(min(by_splits.values()) for by_splits in times.values())


def fastest(times: Times, some: Sequence[Variant]) -> tuple[float, Variant, int]:
    """Time, variant and splits of the best of these variants for a matrix."""
    return min((time, variant, splits) for variant in some for splits, time in times.get(variant, {}).items())

"""What a bar is: sizes, what prepares an operator for one of them, and beside what its time stands."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .timing import Call, Plan, Prepared, Row, copy_bandwidth, seconds_per_call

FLOOR_BANDWIDTH = 4.3e12
"""Bytes a second, of an H200."""
Rows = Callable[[Plan, float], Iterator[Row]]
"""The lines of a bar, from the copy bandwidth in bytes a second as well."""


class Operator(NamedTuple):
    """An operator by itself."""

    prepare: Callable[..., Prepared]
    """Gets the plan and a size, whose values are its other arguments."""
    sizes: Iterable[Row]
    dry_sizes: Iterable[Row]
    name: str = ""
    """In the rows of a bar that has several."""


class Bar(NamedTuple):
    """What `python -m benchmark.kernels NAME` times."""

    about: str
    rows: Rows


def grid(**values: Iterable[float | int | str]) -> list[Row]:
    """Every combination, the last value changing fastest."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def table(names: str, *rows: tuple[float | int | str, ...]) -> list[Row]:
    """Sizes in the order of `names`."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def beside_copy(*operators: Operator) -> Rows:
    """A row for each size: the fraction of the copy bandwidth."""
    return _rows_of(operators, bandwidth_row)


def beside_floor(*operators: Operator) -> Rows:
    """A row for each size: `floor_microseconds` is what its bytes take at `FLOOR_BANDWIDTH`."""

    def row(plan: Plan, num_bytes: int, call: Call, _ceiling: float) -> Row:
        seconds = seconds_per_call(plan, call, plan.buffers(num_bytes))
        return {"microseconds": seconds * 1e6, "floor_microseconds": num_bytes / FLOOR_BANDWIDTH * 1e6}

    return _rows_of(operators, row)


def _rows_of(operators: Iterable[Operator], row: Callable[[Plan, int, Call, float], Row]) -> Rows:
    def rows(plan: Plan, ceiling: float) -> Iterator[Row]:
        for operator in operators:
            name: Row = {"operator": operator.name} if operator.name else {}
            for size in operator.dry_sizes if plan.dry_run else operator.sizes:
                yield name | size | row(plan, *operator.prepare(plan, **size), ceiling)

    return rows


def bandwidth_row(plan: Plan, num_bytes: int, call: Call, ceiling: float) -> Row:
    """Times `call`, which moves `num_bytes` at least, and compares it with both copies.

    Small sizes are also compared with a copy of as many bytes, because there the launch decides.
    """
    seconds = seconds_per_call(plan, call, plan.buffers(num_bytes))
    achieved = num_bytes / seconds
    return {
        "microseconds": seconds * 1e6,
        "gigabytes_per_second": achieved / 1e9,
        "fraction_of_copy": achieved / ceiling,
        "fraction_of_copy_of_same_size": achieved / copy_bandwidth(plan, num_bytes),
    }

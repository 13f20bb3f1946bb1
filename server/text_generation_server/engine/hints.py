"""Which hints of a plan are used. None is an error: the rest is left out. Imports no torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .requests import Hint

MAX_HINT = 64
"""The most ids of a hint that are used."""


def usable_hints(hints: Sequence[Hint], running: NDArray[np.bool_], vocab_size: int) -> list[Hint]:
    """Returns the hints of rows that run, the last of each row, without what follows `MAX_HINT` ids or an id that the
    vocabulary lacks.
    """
    kept: dict[int, Hint] = {}
    for each in hints:
        if each.row < len(running) and running[each.row]:
            ids = each.ids[:MAX_HINT]
            unknown = (ids >= vocab_size).nonzero()[0]
            kept[each.row] = Hint(each.row, each.at, ids[: unknown[0]] if len(unknown) else ids)
    return list(kept.values())

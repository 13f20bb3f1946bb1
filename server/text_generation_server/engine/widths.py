"""How many tokens a step may compute of each row. Imports no torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequest
from .requests import Request, StepPlan

MAX_WINDOW_TOKENS = 512
"""The most tokens of a step whose windows are wider than 1: their logits take memory."""
_ENDLESS = 1 << 62
"""The limit of a request that does not say when it ends."""


def window_widths(drafts: int) -> tuple[int, ...]:
    """Returns the widths of windows, ascending, where rows have up to `drafts` drafts: each has CUDA graphs of its own,
    so there are few.
    """
    return tuple(sorted({width for width in (2, 4, 8, drafts + 1) if width <= drafts + 1})) if drafts else ()


def most_window_tokens(drafts: int, rows: int) -> int:
    """Returns the most tokens that the windows of a step have together, of at most so many rows."""
    return max((min(rows, MAX_WINDOW_TOKENS // width) * width for width in window_widths(drafts)), default=0)


def limit_of(request: Request) -> int:
    """Returns the length at which a request ends."""
    return request.num_prompt + request.max_new_tokens if request.max_new_tokens else _ENDLESS


@dataclass(frozen=True)
class WidthChecker:
    """Checks the widths of plans. Without `widths` there is no speculation."""

    widths: tuple[int, ...] = ()

    def of(self, plan: StepPlan) -> NDArray[np.int64] | None:
        """Returns the width of each of `decode`, or None where all are 1. Raises `InvalidRequest`."""
        if not plan.widths:
            return None
        widths = np.asarray(plan.widths, dtype=np.int64)
        if len(widths) != len(plan.decode):
            raise InvalidRequest(f"`widths` names {len(widths)} widths, but `decode` {len(plan.decode)} rows")
        most, largest = max(self.widths, default=1), int(widths.max())
        if widths.min() < 1 or largest > most:
            raise InvalidRequest(f"`widths` must be from 1 to {most} on this shard (--speculate), not {largest}")
        if largest == 1:
            return None
        if largest not in self.widths:
            known = ", ".join(map(str, self.widths))
            raise InvalidRequest(f"the largest of `widths` must be 1 or one of {known}, not {largest}")
        # A prompt that ends may get as many places as a window has.
        if largest * (rows := len(widths) + len(plan.chunks)) > MAX_WINDOW_TOKENS:
            raise InvalidRequest(
                f"`decode` and `chunks` name {rows} rows of up to {largest} tokens; a step with `widths` computes at "
                f"most {MAX_WINDOW_TOKENS}"
            )
        return widths

"""Positions of media in a request, by its spans alone: rows of the media pool, rotary positions, ends of spans.

Rotary positions of models with axes (M-RoPE, Qwen2-VL, 2024) are triples (time, height, width). Text at rotary position
b has (b, b, b). A span whose first position would have b has (b, b + r, b + c) in row r and column c of its grid, and
what follows goes on from b + max(grid height, grid width). Everything follows from the spans, so a request has the same
positions wherever its prompt is cut, after a pause, and behind a cached prefix.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .media_requests import MediaSpan

Vector = NDArray[np.int64]


def rope_delta(spans: Sequence[MediaSpan]) -> int:
    """Returns by how much the rotary position of what follows all spans differs from its position."""
    return sum(_shift(span) for span in spans)


def rope_positions(spans: Sequence[MediaSpan], first: int, count: int) -> Vector:
    """Returns the rotary positions [3, count] of positions `first` .. `first + count - 1`."""
    positions = np.tile(np.arange(first, first + count, dtype=np.int64), (3, 1))
    shift = 0
    for span in spans:
        if span.first >= first + count:
            break
        if (inside := _inside(span, first, count)) is not None:
            offsets = np.arange(first + inside.start, first + inside.stop, dtype=np.int64) - span.first
            begin = span.first + shift
            positions[0, inside] = begin
            positions[1, inside] = begin + offsets // span.grid_width
            positions[2, inside] = begin + offsets % span.grid_width
        shift += _shift(span)
        positions[:, max(0, span.end - first) :] += _shift(span)
    return positions


def pool_rows(spans: Sequence[MediaSpan], first: int, count: int) -> Iterator[tuple[slice, int]]:
    """Yields, for each span with positions among `first` .. `first + count - 1`, which of these they are, and the row
    of the media pool of the first of them. Rows of the others follow.
    """
    for span in spans:
        if (inside := _inside(span, first, count)) is not None:
            yield inside, span.row + first + inside.start - span.first


def seen_ends(spans: Sequence[MediaSpan], first: int, count: int) -> Vector:
    """Returns, for each position, the end of the positions that it attends to where tokens of a span attend to each
    other in both directions: the next position, or the end of its span.
    """
    ends = np.arange(first + 1, first + count + 1, dtype=np.int64)
    for span in spans:
        if (inside := _inside(span, first, count)) is not None:
            ends[inside] = span.end
    return ends


def _shift(span: MediaSpan) -> int:
    return max(span.grid_height, span.grid_width) - span.length


def _inside(span: MediaSpan, first: int, count: int) -> slice | None:
    """Which of the positions belong to the span; None: none of them."""
    begin, end = max(span.first, first), min(span.end, first + count)
    return slice(begin - first, end - first) if begin < end else None

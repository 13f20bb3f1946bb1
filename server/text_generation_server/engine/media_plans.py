"""Host bookkeeping of media, without tensors: which items are here, how far they are encoded, which rows of the media
pool hold something, and whether requests, chunks and plans fit that.

Everything here depends on PutMedia and the plans alone, so it is equal on all ranks. A caller sends a plan that names
an item once every rank has answered its PutMedia.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequest, OutOfMemory
from .media_positions import pool_rows
from .media_requests import Encode, MediaInfo, MediaPut, MediaSpan
from .requests import Chunk, Request

_PIXELS_AHEAD, _LARGEST_AHEAD = 256 << 20, 2
"""Pixels that wait to be encoded take at most so many bytes, or those of so many of the largest items, if that is more.
"""
_CHANNELS = 3


@dataclass(frozen=True)
class MediaLimits:
    """What Warmup was given."""

    rows: int = 0
    max_pixels: int = 0

    @property
    def pixel_bytes(self) -> int:
        """The most bytes of pixels that wait to be encoded."""
        return max(_PIXELS_AHEAD, _LARGEST_AHEAD * _CHANNELS * self.max_pixels) if self.rows else 0


@dataclass(frozen=True, slots=True)
class _Item:
    rows: int
    num_bytes: int


@dataclass(eq=False)
class MediaItems:
    """The items that are here and the rows that are written. Only the engine thread uses it."""

    num_rows: int
    items: dict[int, _Item] = field(default_factory=dict[int, _Item])
    under_way: tuple[int, int] | None = None
    """An item between its first and its last layer, and the layer that comes next."""
    written: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.written = np.zeros(self.num_rows, dtype=np.bool_)

    def copy(self) -> "MediaItems":
        """Returns a copy, to be changed on trial."""
        other = MediaItems(self.num_rows, dict(self.items), self.under_way)
        other.written = self.written.copy()
        return other

    def forget(self, item: int) -> None:
        """Drops an item, if it is here."""
        self.items.pop(item, None)
        if self.under_way is not None and self.under_way[0] == item:
            self.under_way = None


class MediaChecker:
    """Checks everything about media, and advances the items. Only the engine thread uses it.

    `info` is None, or `limits` have no rows, where no media is served; then every name of media is refused.
    """

    def __init__(self, info: MediaInfo | None = None, limits: MediaLimits | None = None) -> None:
        self.limits = limits or MediaLimits()
        self.info = info if self.limits.rows else None
        self.items = MediaItems(self.limits.rows)

    @property
    def has_whole_spans(self) -> bool:
        """Whether tokens of a span attend to each other."""
        return self.info is not None and self.info.whole_spans

    @property
    def has_own_matrices(self) -> bool:
        """Whether tokens of a span pass matrices of their own."""
        return self.info is not None and self.info.own_matrices

    def put(self, put: MediaPut, rows: int) -> bool:
        """Takes an item whose views make `rows` embeddings. Returns False for one that is here already, which changes
        nothing.

        Raises `InvalidRequest` for a wrong one, and `OutOfMemory` where too many pixels wait.
        """
        if put.item in self.items.items:
            return False
        if self.info is None:
            raise InvalidRequest("no media is served: Warmup had `media_rows` 0")
        if put.num_pixels > self.limits.max_pixels:
            raise InvalidRequest(
                f"`views` have {put.num_pixels} pixels, more than the `max_media_pixels` of Warmup, "
                f"{self.limits.max_pixels}"
            )
        if len(put.pixels) != _CHANNELS * put.num_pixels:
            raise InvalidRequest(f"{len(put.pixels)} bytes came, and `views` have {_CHANNELS * put.num_pixels}")
        if put.rows != rows:
            raise InvalidRequest(f"`rows` is {put.rows}, and the encoder makes {rows} of `views`")
        if rows > self.limits.rows:
            raise InvalidRequest(f"`rows` {rows} is more than the media pool has, {self.limits.rows}")
        held = sum(each.num_bytes for each in self.items.items.values())
        if held + len(put.pixels) > self.limits.pixel_bytes:
            raise OutOfMemory(
                f"pixels of {len(self.items.items)} items wait to be encoded and take {held} of "
                f"{self.limits.pixel_bytes} bytes; encode or forget some first"
            )
        self.items.items[put.item] = _Item(rows, len(put.pixels))
        return True

    def clear(self) -> None:
        """Drops all items; no row holds anything any more."""
        self.items = MediaItems(self.limits.rows)

    def check_request(self, request: Request) -> None:
        """Raises `InvalidRequest`, naming the field, for spans that a request cannot have."""
        if not request.media:
            return
        if self.info is None:
            raise InvalidRequest("`media` must be empty: this shard serves text alone")
        end = 0
        for span in request.media:
            if span.first < end:
                raise InvalidRequest(f"`media` must be ascending and apart: position {span.first} comes after {end}")
            end = span.end
            self._check_span(span, request, self.info)

    def _check_span(self, span: MediaSpan, request: Request, info: MediaInfo) -> None:
        if span.length < 1 or span.end > request.num_prompt:
            raise InvalidRequest(
                f"`media` names positions {span.first} to {span.end - 1} of a prompt of {request.num_prompt} tokens"
            )
        if (request.input_ids[span.first : span.end] != info.token_id).any():
            raise InvalidRequest(f"`input_ids` must be {info.token_id} at all positions of a span of `media`")
        grid = span.grid_height, span.grid_width
        if info.axes and (min(grid) < 1 or grid[0] * grid[1] != span.length):
            raise InvalidRequest(f"`media` has a span of {span.length} positions and a grid of {grid[0]} x {grid[1]}")
        # Rows of cached positions are not read.
        first = max(span.first, request.cached_length)
        if first < span.end and span.row + span.length > self.limits.rows:
            raise InvalidRequest(
                f"`media` names rows {span.row} to {span.row + span.length - 1} of a media pool of {self.limits.rows}"
            )

    def encode(self, encodes: Sequence[Encode], forget: Sequence[int]) -> MediaItems:
        """Returns the items after a plan's changes. Raises `InvalidRequest` for wrong ones."""
        if not encodes and not forget:
            return self.items
        items = self.items.copy()
        for item in forget:
            items.forget(item)
        for each in encodes:
            self._encode(items, each)
        return items

    def _encode(self, items: MediaItems, encode: Encode) -> None:
        item = items.items.get(encode.item)
        if self.info is None or item is None:
            raise InvalidRequest(f"`encode` names item {encode.item}, which PutMedia has not brought")
        if items.under_way is not None and items.under_way[0] != encode.item:
            raise InvalidRequest(f"`encode` names item {encode.item} while {items.under_way[0]} is under way")
        following = 0 if items.under_way is None else items.under_way[1]
        end = encode.first_layer + encode.layers
        if encode.first_layer != following or encode.layers < 1 or end > self.info.layers:
            raise InvalidRequest(
                f"`encode` names layers {encode.first_layer} to {end - 1} of item {encode.item}, but of the "
                f"{self.info.layers} layers {following} are computed"
            )
        last = encode.row + encode.rows
        if encode.rows != item.rows or last > self.limits.rows:
            raise InvalidRequest(
                f"`encode` gives item {encode.item} rows {encode.row} to {last - 1}; it makes {item.rows}, and the "
                f"media pool has {self.limits.rows}"
            )
        items.under_way = encode.item, end
        if end == self.info.layers:
            items.forget(encode.item)
            items.written[encode.row : last] = True

    def check_chunk(self, items: MediaItems, request: Request, chunk: Chunk) -> None:
        """Raises `InvalidRequest` for a chunk that reads rows of the media pool which hold nothing, or that cuts a span
        whose tokens attend to each other.
        """
        end = chunk.first + chunk.count
        for inside, row in pool_rows(request.media, chunk.first, chunk.count):
            rows = slice(row, row + inside.stop - inside.start)
            if not items.written[rows].all():
                raise InvalidRequest(
                    f"the chunk of row {chunk.row} reads rows {rows.start} to {rows.stop - 1} of the media pool, and "
                    "not all are encoded"
                )
        if not self.has_whole_spans:
            return
        for span in request.media:
            if span.first < end < span.end and chunk.first < end:
                raise InvalidRequest(
                    f"the chunk of row {chunk.row} ends at position {end - 1}, within a span that goes to "
                    f"{span.end - 1}: tokens of a span attend to each other"
                )

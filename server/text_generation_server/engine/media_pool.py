"""Tensors of media: pixels that wait, the item under way, and the media pool, which holds what the encoder made.

Only the engine thread uses it. `media_plans.py` has checked all that is done here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.encoder import Encoder, EncoderState
from .media_plans import MediaLimits
from .media_requests import Encode, MediaPut, pixels_of
from .transfer import Readback

_CHANNELS = 3


@dataclass(frozen=True, eq=False)
class EncodedItem:
    """An item whose last layer was launched."""

    row: int
    rows: int
    is_finite: Readback
    """One boolean: whether all of its rows are finite."""


@dataclass(frozen=True, eq=False)
class _Pixels:
    pixels: Tensor
    views: tuple[tuple[int, int], ...]
    grid: tuple[int, int]
    copied: torch.cuda.Event | None
    """None: on a CPU."""

    @property
    def count(self) -> int:
        """Of all views."""
        return pixels_of(self.views)

    def split(self) -> list[Tensor]:
        """Returns the views, [height, width, 3] each, once they are on the device."""
        if self.copied is not None:
            stream = torch.cuda.current_stream(self.pixels.device)
            stream.wait_event(self.copied)
            self.pixels.record_stream(stream)
        sizes = [_CHANNELS * height * width for height, width in self.views]
        parts = zip(self.pixels.split(sizes), self.views, strict=True)
        return [part.view(*view, _CHANNELS) for part, view in parts]


class MediaPool:
    """`rows` [media_rows, levels, hidden] of the model's type, and all that leads there."""

    def __init__(
        self, encoder: Encoder, limits: MediaLimits, dtype: torch.dtype, device: torch.device, packs: bool = False
    ) -> None:
        """`packs` says whether whole items of one plan are encoded together."""
        self._encoder = encoder
        self._most_pixels = limits.max_pixels if packs else 0
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pixels: dict[int, _Pixels] = {}
        self._under_way: tuple[int, EncoderState] | None = None
        self.rows = torch.zeros(limits.rows, encoder.levels, encoder.hidden, dtype=dtype, device=device)

    @staticmethod
    def num_bytes(encoder: Encoder, limits: MediaLimits, dtype: torch.dtype) -> int:
        """Returns the bytes of the pool and of pixels that wait, without what encoding takes."""
        return limits.rows * encoder.levels * encoder.hidden * dtype.itemsize + limits.pixel_bytes

    def put(self, put: MediaPut) -> None:
        """Copies pixels to the device, beside the steps there."""
        host, copied = torch.from_numpy(put.pixels), None
        if self._stream is None:
            pixels = host.clone()
        else:
            with torch.cuda.stream(self._stream):
                pixels = host.pin_memory().to(self._device, non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()
        self._pixels[put.item] = _Pixels(pixels, put.views, put.grid, copied)

    def forget(self, items: Sequence[int]) -> None:
        """Drops items."""
        for item in items:
            self._pixels.pop(item, None)
            if self._under_way is not None and self._under_way[0] == item:
                self._under_way = None

    def clear(self) -> None:
        """Drops all items."""
        self._pixels.clear()
        self._under_way = None

    def encode(self, encodes: Sequence[Encode]) -> list[EncodedItem]:
        """Launches layers of the encoder. Returns the items that are done."""
        return [done for each in self._packed(encodes) for done in self._encode(each)]

    def _packed(self, encodes: Sequence[Encode]) -> list[list[Encode]]:
        """Cuts them into those that are computed together: small whole items, or one that is not."""
        packs, pixels = list[list[Encode]](), 0
        for each in encodes:
            waiting, own = self._pixels.get(each.item), self._most_pixels
            if waiting is not None and each.layers == self._encoder.layers:
                own = waiting.count
            if not packs or pixels + own > self._most_pixels:
                packs.append([])
                pixels = 0
            packs[-1].append(each)
            pixels += own
        return packs

    def _encode(self, encodes: Sequence[Encode]) -> list[EncodedItem]:
        first = encodes[0]
        if first.first_layer == 0:
            # The encoder keeps no pixels, so their memory is free for others.
            waiting = [self._pixels.pop(each.item) for each in encodes]
            views = [view for each in waiting for view in each.split()]
            grid = waiting[0].grid if len(waiting) == 1 else (0, 0)
            self._under_way = first.item, self._encoder.begin(views, grid)
        if self._under_way is None:
            raise ValueError(f"item {first.item} has not begun")
        state = self._under_way[1]
        self._encoder.run(state, first.first_layer, first.layers)
        if first.first_layer + first.layers < self._encoder.layers:
            return []
        self._under_way = None
        made = self._encoder.finish(state).split([each.rows for each in encodes])
        return [self._keep(encode, rows) for encode, rows in zip(encodes, made, strict=True)]

    def _keep(self, encode: Encode, made: Tensor) -> EncodedItem:
        self.rows[encode.row : encode.row + encode.rows].copy_(made)
        return EncodedItem(encode.row, encode.rows, Readback(made.isfinite().all()))

"""Tensors of media: pixels that wait, the item under way, and the media pool, which holds what the encoder made.

Only the engine thread uses it. `media_plans.py` has checked all that is done here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.encoder import Encoder, EncoderState
from .media_plans import MediaLimits
from .media_requests import Encode, MediaPut
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

    def __init__(self, encoder: Encoder, limits: MediaLimits, dtype: torch.dtype, device: torch.device) -> None:
        self._encoder = encoder
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
        return [done for each in encodes if (done := self._encode(each)) is not None]

    def _encode(self, encode: Encode) -> EncodedItem | None:
        if encode.first_layer == 0:
            # The encoder keeps no pixels, so their memory is free for others.
            waiting = self._pixels.pop(encode.item)
            self._under_way = encode.item, self._encoder.begin(waiting.split(), waiting.grid)
        if self._under_way is None:
            raise ValueError(f"item {encode.item} has not begun")
        state = self._under_way[1]
        self._encoder.run(state, encode.first_layer, encode.layers)
        if encode.first_layer + encode.layers < self._encoder.layers:
            return None
        self._under_way = None
        made = self._encoder.finish(state)
        self.rows[encode.row : encode.row + encode.rows].copy_(made)
        return EncodedItem(encode.row, encode.rows, Readback(made.isfinite().all()))

"""What encoding media takes, as warm-up measures it: memory beside a step, and time by pixels.

The encoder runs alone here, outside of plans, and writes no row of the media pool.
"""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ..distributed.group import TensorParallelGroup
from ..models.encoder import Encoder
from .clock import Mark
from .media_requests import MediaCost, pixels_of

_FRACTIONS = (64, 16, 4, 2, 1)
"""Items of so many parts of the pixels of the largest are timed."""
_REPETITIONS, _BUDGET_S = 3, 5.0


def encode_once(encoder: Encoder, views: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Encodes an item of grey views, all layers."""
    pixels = [torch.full((*view, 3), 127, dtype=torch.uint8, device=device) for view in views]
    state = encoder.begin(pixels)
    encoder.run(state, 0, encoder.layers)
    return encoder.finish(state)


def samples(encoder: Encoder, max_pixels: int) -> list[Sequence[tuple[int, int]]]:
    """Returns the views of items to time, from few pixels to the most."""
    found = {pixels_of(views): views for part in _FRACTIONS if (views := encoder.sample(max(1, max_pixels // part)))}
    return [found[pixels] for pixels in sorted(found)]


def measured_media_cost(
    encoder: Encoder, group: TensorParallelGroup, max_pixels: int, device: torch.device
) -> MediaCost:
    """Measures the time of items on the slowest rank. Those that would take too long are guessed from smaller ones. All
    ranks call it together, and agree on which these are.
    """
    pixels: list[int] = []
    times_ms: list[float] = []
    started, spent_ms = time.monotonic(), 0
    for views in samples(encoder, max_pixels):
        size = pixels_of(views)
        guess_ms = _extended(pixels, times_ms, size)
        ms = guess_ms
        if not pixels or spent_ms + (1 + _REPETITIONS) * guess_ms <= 1e3 * _BUDGET_S:
            # The first run fills caches.
            _time(encoder, views, device)
            median = statistics.median_low(_time(encoder, views, device) for _ in range(_REPETITIONS))
            ns, spent_ms = group.max_ints([median, int(1e3 * (time.monotonic() - started))])
            ms = ns / 1e6
        times_ms.append(max(ms, times_ms[-1] if times_ms else 0.0))
        pixels.append(size)
    return MediaCost(pixels, times_ms)


def _extended(pixels: Sequence[int], times_ms: Sequence[float], size: int) -> float:
    """Returns the time of a larger item by those of smaller ones, in proportion or as it grew last, if that is more."""
    if not pixels:
        return 0.0
    in_proportion = times_ms[-1] * size / pixels[-1]
    if len(pixels) == 1:
        return in_proportion
    growth = (times_ms[-1] - times_ms[-2]) / (pixels[-1] - pixels[-2])
    return max(in_proportion, times_ms[-1] + growth * (size - pixels[-1]))


def _time(encoder: Encoder, views: Sequence[tuple[int, int]], device: torch.device) -> int:
    begin = Mark(device)
    encode_once(encoder, views, device)
    end = Mark(device)
    end.wait()
    return begin.until(end)

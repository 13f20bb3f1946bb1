"""A small encoder of images, images for it, and engines whose model has it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from support.fake_model import SingleGroup
from support.router import Stream
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine import warmup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_requests import Encode, MediaCost, MediaPut, MediaSpan
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, StepCost, StepPlan, WarmupLimits
from text_generation_server.errors import InvalidRequest
from text_generation_server.models import CausalLM

PATCH = 4
TOKEN = 9
"""The placeholder."""
LIMITS = WarmupLimits(
    max_batch_prefill_tokens=64,
    max_batch_size=8,
    max_batch_total_tokens=512,
    max_total_tokens=48,
    media_rows=40,
    max_media_pixels=256,
)
SERVING = ServingLimits(512, 47, 48, 8)


class FakeEncoder:
    """Each patch of 4 x 4 pixels becomes one row, by random matrices: a function of its pixels and its place."""

    layers = 3
    token_id = TOKEN

    def __init__(
        self,
        hidden: int,
        levels: int = 1,
        whole_spans: bool = False,
        axes: bool = False,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.hidden, self.levels, self.whole_spans, self.axes = hidden, levels, whole_spans, axes
        self.packs = self.own_matrices = False
        self._dtype = dtype
        generator = torch.Generator().manual_seed(3)
        self._in = torch.randn(3 * PATCH**2, 24, generator=generator).to(device) / 7
        self._layers = torch.randn(self.layers, 24, 24, generator=generator).to(device) / 5
        self._out = torch.randn(24, levels * hidden, generator=generator).to(device) / 5
        self.runs: list[tuple[int, int]] = []
        """Ranges of layers, as they were run."""

    def rows(self, views: Sequence[tuple[int, int]], grid: tuple[int, int] = (0, 0)) -> int:
        if not views or any(height % PATCH or width % PATCH or not height * width for height, width in views):
            raise InvalidRequest(f"`views` must have sides that {PATCH} divides")
        return sum(height * width for height, width in views) // PATCH**2

    def sample(self, pixels: int) -> Sequence[tuple[int, int]]:
        return [(PATCH, max(1, pixels // PATCH**2) * PATCH)]

    def begin(self, views: Sequence[Tensor], grid: tuple[int, int] = (0, 0)) -> list[Tensor]:
        return [torch.cat([self._embed(view) for view in views])]

    def _embed(self, view: Tensor) -> Tensor:
        patches = view.unflatten(0, (-1, PATCH)).unflatten(2, (-1, PATCH)).transpose(1, 2).reshape(-1, 3 * PATCH**2)
        places = torch.arange(len(patches), device=view.device)[:, None] / 8
        return (patches / 128 - 1) @ self._in + places

    def run(self, state: list[Tensor], first: int, count: int) -> None:
        self.runs.append((first, count))
        for layer in range(first, first + count):
            state[0] = torch.tanh(state[0] @ self._layers[layer]) + 0.5 * state[0]

    def finish(self, state: list[Tensor]) -> Tensor:
        return (state[0] @ self._out).unflatten(1, (self.levels, self.hidden)).to(self._dtype)


@dataclass(frozen=True)
class Image:
    """Of one view, by a seed."""

    height: int
    width: int
    seed: int

    @property
    def grid(self) -> tuple[int, int]:
        return self.height // PATCH, self.width // PATCH

    @property
    def rows(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def pixels(self) -> np.ndarray:
        generator = np.random.default_rng(self.seed)
        return generator.integers(0, 256, (self.height, self.width, 3), dtype=np.uint8)

    def put(self, item: int, **changes: object) -> MediaPut:
        views = ((self.height, self.width),)
        return replace(MediaPut(item, views, self.grid, self.rows, self.pixels.reshape(-1)), **changes)  # type: ignore[arg-type]

    def embeddings(self, encoder: FakeEncoder) -> Tensor:
        """What the encoder makes of it, [rows, levels, hidden]."""
        state = encoder.begin([torch.from_numpy(self.pixels)])
        encoder.run(state, 0, encoder.layers)
        return encoder.finish(state)


@dataclass(frozen=True)
class Prompt:
    """Token ids, and images between them."""

    pieces: tuple[tuple[int, ...] | Image, ...]

    @property
    def images(self) -> list[Image]:
        return [piece for piece in self.pieces if isinstance(piece, Image)]

    @property
    def ids(self) -> list[int]:
        parts = ((TOKEN,) * piece.rows if isinstance(piece, Image) else piece for piece in self.pieces)
        return [token for part in parts for token in part]

    def spans(self, rows: Sequence[int]) -> tuple[MediaSpan, ...]:
        """Whose images lie at these rows of the pool."""
        spans, first, placed = [], 0, iter(rows)
        for piece in self.pieces:
            length = piece.rows if isinstance(piece, Image) else len(piece)
            if isinstance(piece, Image):
                spans.append(MediaSpan(first, length, next(placed), *piece.grid))
            first += length
        return tuple(spans)


def media_engine(
    model: CausalLM,
    encoder: FakeEncoder,
    monkeypatch: pytest.MonkeyPatch,
    group: TensorParallelGroup | None = None,
    limits: WarmupLimits = LIMITS,
    **options: bool,
) -> Engine:
    """An engine of the model with this encoder, which did not time anything."""
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())
    monkeypatch.setattr(warmup, "measured_media_cost", lambda *_: MediaCost())
    model.encoder = encoder
    engine = Engine(model, group or SingleGroup(), (), "torch", WatermarkConfig(), EngineOptions(**options))  # type: ignore[arg-type]
    engine.warmup(limits)
    return engine


def bring(engine: Engine, images: Sequence[Image], first_row: int = 1) -> tuple[dict[Image, int], int]:
    """Clears an engine and encodes images in ranges of one layer and of two. Returns the first row of each, and the
    number of the next plan.
    """
    engine.clear_cache(None)
    rows: dict[Image, int] = {}
    number, row = 0, first_row
    for item, image in enumerate(dict.fromkeys(images)):
        engine.put_media(image.put(item))
        for first, count in ((0, 1), (1, 2)):
            plan = StepPlan(number, encode=[Encode(item, first, count, row, image.rows)])
            engine.step(plan).result()
            number += 1
        rows[image] = row
        row += image.rows
    return rows, number


def media_stream(
    request_id: int, prompt: Prompt, rows: dict[Image, int], max_new_tokens: int, **fields: object
) -> Stream:
    """A request that reads images at these rows."""
    spans = prompt.spans([rows[image] for image in prompt.images])
    return Stream(request_id, prompt.ids, max_new_tokens, media=spans, **fields)  # type: ignore[arg-type]

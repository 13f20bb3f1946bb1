"""A whole shard of a model that sees, which brings and encodes images and did not time anything."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.fake_model import SingleGroup
from support.loading import load
from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine import warmup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_requests import Encode, MediaCost, MediaPut
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, StepCost, StepPlan, WarmupLimits
from text_generation_server.models.encoder import Encoder

LIMITS = WarmupLimits(
    max_batch_prefill_tokens=64,
    max_batch_size=4,
    max_batch_total_tokens=256,
    max_total_tokens=64,
    media_rows=64,
    max_media_pixels=17 * 17 * 3,
)
SERVING = ServingLimits(256, 63, 64, 4)
BEFORE, AFTER, NEW_TOKENS = [5, 17, 3], [44, 12], 4


def serving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: TensorParallelGroup | None = None
) -> tuple[Engine, Encoder]:
    """A model as its saved files give it."""
    model = load(folder, group=group)
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())
    monkeypatch.setattr(warmup, "measured_media_cost", lambda *_: MediaCost())
    engine = Engine(model, group or SingleGroup(), (), "torch", WatermarkConfig(), EngineOptions())  # type: ignore[arg-type]
    engine.warmup(LIMITS)
    assert model.encoder is not None
    return engine, model.encoder


def pixels_of(views: Sequence[Tensor]) -> NDArray[np.uint8]:
    return torch.cat([view.flatten() for view in views]).numpy()


def encode(engine: Engine, encoder: Encoder, put: MediaPut) -> int:
    """Encodes an item to row 1 of the pool, layer by layer. Returns the number of the next plan."""
    engine.put_media(put)
    for layer in range(encoder.layers):
        engine.step(StepPlan(layer, encode=[Encode(put.item, layer, 1, 1, put.rows)])).result()
    return encoder.layers

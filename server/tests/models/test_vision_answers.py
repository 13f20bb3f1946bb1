"""Images through the whole shard, from bytes of pixels to tokens, against transformers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.engine_driver import directly
from support.fake_model import SingleGroup
from support.loading import load
from support.router import Router, Stream
from support.vision_cases import TOKEN, VISION_CASES, expected_logits, views_of
from torch import Tensor

from text_generation_server.config.server import WatermarkConfig
from text_generation_server.engine import warmup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_requests import Encode, MediaCost, MediaPut, MediaSpan
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


def serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Encoder]:
    """A model as its saved files give it."""
    model = load(folder)
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())
    monkeypatch.setattr(warmup, "measured_media_cost", lambda *_: MediaCost())
    engine = Engine(model, SingleGroup(), (), "torch", WatermarkConfig(), EngineOptions())
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


NAMES = [
    "llava",
    "llava full",
    "pixtral",
    "mistral3",
    "qwen2 vl",
    "qwen2.5 vl",
    "qwen3 vl",
    "qwen3 vl moe",
    "qwen3.5",
    "qwen3.5 moe",
    "gemma3",
    "gemma4",
    "gemma4 small",
    "glm4v",
    "glm4v moe",
    "internvl",
    "internvl chat",
    "internvl chat internlm2",
    "llama4",
    "llava next",
    "llava original",
    "llava original tiles",
    "llava onevision",
    "granite vision",
    "idefics3",
    "ovis2",
    "kimi k2.5",
    "kimi vl",
    "minimax m3",
    "step3.7",
    "aria",
    "minicpm-v 2.6",
    "minicpm-v 4",
    "minicpm-v 4.5",
    "qwen-vl",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [3, 64])
def test_answers_about_an_image_are_those_of_transformers(
    name: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy tokens, and log-probabilities of the prompt, in chunks and whole."""
    case = VISION_CASES[name]
    reference = case.write(tmp_path)
    engine, encoder = serving(tmp_path, monkeypatch)
    item = min(case.items, key=lambda item: sum(height * width for height, width in item.views))
    views, rows = views_of(item.views), encoder.rows(item.views, item.grid)
    # Where positions count along axes, the grid is theirs: these cases merge 2 x 2 patches of 4 x 4 pixels.
    grid = (item.views[0][0] // 8, item.views[0][1] // 8) if encoder.axes else item.grid
    number = encode(engine, encoder, MediaPut(0, tuple(item.views), grid, rows, pixels_of(views)))
    span = MediaSpan(len(BEFORE), rows, 1, *(grid if encoder.axes else (0, 0)))
    stream = Stream(0, [*BEFORE, *[TOKEN] * rows, *AFTER], NEW_TOKENS, prefill_logprobs=True, media=(span,))
    router = Router(
        directly(engine),
        SERVING,
        chunk,
        vocab_size=99,
        recurrent=engine.info.recurrent,
        whole_spans=encoder.whole_spans,
        number=number,
    )
    router.run(stream)
    assert stream.failure is None
    logits = expected_logits(case, reference, stream.ids, views, item)[:-1]
    last = len(stream.prompt) - 1
    assert stream.tokens == logits[last:].argmax(-1).tolist()
    logprobs = logits.log_softmax(-1)[torch.arange(len(logits)), torch.tensor(stream.ids[1:])]
    found = torch.tensor([*stream.prompt_logprobs, *stream.logprobs])
    torch.testing.assert_close(found, logprobs, atol=1e-3, rtol=0)

"""Matrices that tokens of images alone pass (InternLM-XComposer 2), through the whole shard."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import directly
from support.fake_model import SingleGroup
from support.loading import load
from support.router import Router, Stream
from support.thread_ranks import thread_groups, together
from support.vision_case import VisionCase
from support.vision_cases import TOKEN, VISION_CASES, expected_logits, views_of
from support.vision_serving import AFTER, BEFORE, NEW_TOKENS, SERVING, encode, pixels_of, serving
from transformers import PreTrainedModel

from text_generation_server.config.server import WatermarkConfig
from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_requests import MediaPut, MediaSpan
from text_generation_server.engine.options import EngineOptions
from text_generation_server.layers.weights.image_low_rank import ImageLinear
from text_generation_server.models.encoder import Encoder

CASE: VisionCase = VISION_CASES["xcomposer2"]
ITEM = CASE.items[0]
VIEWS = views_of(ITEM.views)
TEXT = [5, 17, 3, 44, 12, 9]


def with_image(id_: int, rows: int) -> Stream:
    prompt = [*BEFORE, *[TOKEN] * rows, *AFTER]
    return Stream(id_, prompt, NEW_TOKENS, media=(MediaSpan(len(BEFORE), rows, 1),))


def brought(engine: Engine, encoder: Encoder) -> tuple[int, int]:
    """Encodes the image. Returns its rows and the number of the next plan."""
    rows = encoder.rows(ITEM.views)
    put = MediaPut(0, tuple(ITEM.views), (0, 0), rows, pixels_of(VIEWS))
    return rows, encode(engine, encoder, put)


def router(engine: Engine, number: int, chunk: int) -> Router:
    return Router(directly(engine), SERVING, chunk, vocab_size=99, number=number)


def assert_is_expected(reference: PreTrainedModel, stream: Stream) -> None:
    with torch.inference_mode():
        of_text = reference(torch.tensor([stream.ids])).logits[0]
    logits = (expected_logits(CASE, reference, stream.ids, VIEWS, ITEM) if stream.media else of_text)[:-1]
    last = len(stream.prompt) - 1
    assert stream.tokens == logits[last:].argmax(-1).tolist()
    logprobs = logits.log_softmax(-1)[torch.arange(len(logits)), torch.tensor(stream.ids[1:])]
    torch.testing.assert_close(torch.tensor(stream.logprobs), logprobs[last:], atol=1e-3, rtol=0)


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_images_and_text_in_one_batch_get_the_answers_of_each(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = CASE.write(tmp_path)
    engine, encoder = serving(tmp_path, monkeypatch)
    rows, number = brought(engine, encoder)
    streams = [with_image(0, rows), Stream(1, TEXT, NEW_TOKENS), with_image(2, rows)]
    router(engine, number, chunk).run(*streams)
    for stream in streams:
        assert_is_expected(reference, stream)


def test_a_prefix_may_end_within_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = CASE.write(tmp_path)
    engine, encoder = serving(tmp_path, monkeypatch)
    for cached in range(len(BEFORE), len(BEFORE) + encoder.rows(ITEM.views) + 1):
        engine.clear_cache(None)
        rows, number = brought(engine, encoder)
        holder, again = with_image(0, rows), with_image(1, rows)
        running = router(engine, number, 3)
        running.start(holder)
        while not holder.tokens:
            running.step()
        running.start(again, prefix_of=holder, cached=cached)
        running.run()
        assert_is_expected(reference, again)


def test_two_ranks_compute_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = CASE.write(tmp_path)

    def of_rank(group: TensorParallelGroup) -> Stream:
        engine, encoder = serving(tmp_path, monkeypatch, group)
        rows, number = brought(engine, encoder)
        stream = with_image(0, rows)
        router(engine, number, 3).run(stream)
        return stream

    first, second = together([partial(of_rank, group) for group in thread_groups(2)])
    assert first.tokens == second.tokens
    assert_is_expected(reference, first)


def test_steps_without_images_pass_no_such_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of the text of a prompt with an image is such a step too."""
    CASE.write(tmp_path)
    engine, encoder = serving(tmp_path, monkeypatch)
    rows, number = brought(engine, encoder)
    tokens: list[int] = []
    added: Any = ImageLinear._added
    monkeypatch.setattr(ImageLinear, "_added", lambda self, out, x: tokens.append(len(x.x)) or added(self, out, x))
    router(engine, number, 3).run(with_image(0, rows), Stream(1, TEXT, NEW_TOKENS))
    layers, matrices = 3, 4
    # Three tokens before the image are a chunk of their own.
    assert len(tokens) == layers * matrices * -(-rows // 3)


@pytest.mark.parametrize("name", ["attention.wqkv.Plora_B", "feed_forward.w2.Plora_A"])
def test_files_without_them_serve_text_alone(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    CASE.write(tmp_path)
    path = tmp_path / "model.safetensors"
    lacking = f"model.layers.1.{name}.weight"
    save_file({key: each for key, each in load_file(path).items() if key != lacking}, path)
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path).encoder is None
    assert caplog.messages[0].startswith("images are refused, as matrices of their tokens cannot be read")
    assert lacking in caplog.messages[0]


def test_deterministic_servers_serve_text_alone(tmp_path: Path) -> None:
    CASE.write(tmp_path)
    engine = Engine(load(tmp_path), SingleGroup(), (), "torch", WatermarkConfig(), EngineOptions(deterministic=True))
    assert engine.info.media is None

"""Warm-up names every kernel variant that steps with images need, for a decoder with axes and DeepStack."""

# pyright: basic
from pathlib import Path

import pytest
import torch
from kernel_support.variants import launched_variants, pretend_a_device
from support.dry_warm_up import dry_probe, warmed_up
from support.families import model_of, write
from support.loading import CPU, load
from support.media import TOKEN, FakeEncoder, Image, Prompt
from support.media_cases import MEDIA_CASES

from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.media_requests import Encode, MediaInfo
from text_generation_server.engine.requests import (
    Chunk,
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepPlan,
    WarmupLimits,
)
from text_generation_server.engine.runner import StepRunner

LIMITS = ServingLimits(512, 48, 64, 4)


def serve(runner: StepRunner, images: int, length: int) -> None:
    """A prompt of images and text in two chunks, beside a decode, then a decode of it."""
    image = Image(8, 12, 0)
    pieces = [image, (5,) * length] * images
    prompt = Prompt(tuple(pieces))
    spans = prompt.spans([4] * images)
    admit = [
        Request(row, row, torch.tensor(ids).numpy(), NextTokenChooserParameters(), (SlotRange(0, 64),), media=media)
        for row, (ids, media) in enumerate((([1, 2], ()), (prompt.ids, spans)))
    ]
    first = len(prompt.ids) // 2
    chunks = [Chunk(1, 0, first)], [Chunk(1, first, len(prompt.ids) - first)]
    put = image.put(1)
    assert runner.media is not None
    runner.checker.media.put(put, put.rows)
    runner.media.put(put)
    runner.launch(StepPlan(0, admit=admit[:1], chunks=[Chunk(0, 0, 2)], encode=[Encode(1, 0, 2, 4, 6)]))
    runner.launch(StepPlan(1, admit=admit[1:], chunks=chunks[0], decode=[0], encode=[Encode(1, 2, 1, 4, 6)]))
    runner.launch(StepPlan(2, chunks=chunks[1], decode=[0]))
    runner.launch(StepPlan(3, decode=[0, 1]))
    runner.launch(StepPlan(4, drop=[0, 1]))


@torch.inference_mode()
def test_images_need_no_variant_that_warm_up_did_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(MEDIA_CASES["qwen3 vl"], model_of("qwen3 vl"), tmp_path)
    model = load(tmp_path, torch.bfloat16)
    model.encoder = FakeEncoder(32, levels=3, axes=True, dtype=torch.bfloat16)
    group, asked = TensorParallelGroup(0, 1, CPU), WarmupLimits(48, 4, media_rows=16, max_media_pixels=96)
    pretend_a_device(monkeypatch)
    probe = dry_probe(model, group, asked, media=MediaInfo(TOKEN, 3, axes=True))
    runner, named = warmed_up(probe, LIMITS)
    with launched_variants() as needed:
        for images in (1, 2, 3):
            for length in (1, 2, 7):
                serve(runner, images, length)
    assert {name for name, _ in needed} >= {"embed_kernel", "qkv_postprocess_kernel", "prefill_attention_kernel"}
    assert not needed - named

"""Images in a prompt, of a small encoder, against the classes of transformers: however the prompt is cut."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.comparing import checkpoints
from support.loading import load
from support.media import SERVING, FakeEncoder, bring, media_engine, media_stream
from support.media_cases import MEDIA_CASES
from support.media_comparing import (
    FIRST,
    KINDS,
    NEW_TOKENS,
    SMALL,
    SWAPPED,
    TEXT,
    TWO,
    assert_is_expected,
    generations,
    router,
)
from support.router import Router, Stream
from support.thread_ranks import thread_groups, together

from text_generation_server.distributed import TensorParallelGroup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_requests import Encode
from text_generation_server.engine.requests import MaskSource, StepPlan, StepReply
from text_generation_server.models import CausalLM
from text_generation_server.models.decoder import Decoder
from text_generation_server.models.encoder_fit import reason_against


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoints(tmp_path_factory.mktemp("media"), {name: MEDIA_CASES[name] for name in KINDS})


@pytest.fixture(params=list(KINDS), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(name: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Engine:
    return media_engine(load(folder_of(name)), KINDS[name].encoder(), monkeypatch)


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_log_probabilities_are_those_of_transformers(name: str, engine: Engine, chunk: int) -> None:
    """Of requests in one batch, with images, swapped images, and none."""
    prompts = (TWO, SWAPPED, FIRST, TEXT)
    for prompt, stream in zip(prompts, generations(engine, *prompts, chunk=chunk), strict=True):
        assert_is_expected(name, prompt, stream)


def test_images_that_the_decoder_cannot_read_are_not_served(folder_of: Callable[[str], Path]) -> None:
    reasons = {
        "DeepStack": reason_for(load(folder_of("qwen3 vl")), FakeEncoder(32, levels=4)),
        "axes": reason_for(load(folder_of("llava")), FakeEncoder(32, axes=True)),
        "spans": reason_for(load(folder_of("qwen3.5 images")), FakeEncoder(32, whole_spans=True)),
    }
    assert "adds to the output of 3 layers" in reasons["DeepStack"]
    assert "`mrope_section` is missing" in reasons["axes"]
    assert "attend to each other" in reasons["spans"]
    for name, kind in KINDS.items():
        assert reason_for(load(folder_of(name)), kind.encoder()) == ""


def reason_for(model: CausalLM, encoder: FakeEncoder) -> str:
    assert isinstance(model, Decoder)
    return reason_against(encoder, model._layers, model._ropes)


def test_the_order_of_images_counts(engine: Engine) -> None:
    two, swapped = generations(engine, TWO, SWAPPED)
    assert two.logprobs != pytest.approx(swapped.logprobs, abs=1e-2)


@pytest.mark.parametrize("seed", range(3))
def test_pauses_change_nothing(name: str, engine: Engine, seed: int) -> None:
    streams = generations(engine, TWO, FIRST, scored=False, chunk=3, pause=0.3, depth=2, seed=seed)
    assert sum(stream.pauses for stream in streams) > 0
    for prompt, stream in zip((TWO, FIRST), streams, strict=True):
        assert_is_expected(name, prompt, stream)


@pytest.mark.parametrize("name", ["llava", "qwen3 vl", "gemma3 images"])
def test_every_cut_after_every_cached_length_gives_the_same(name: str, engine: Engine) -> None:
    """The prefix may end within an image, and so may a chunk, but where tokens of a span see each other."""
    (whole,) = generations(engine, TWO, scored=False)
    logprobs = pytest.approx(whole.logprobs, abs=1e-4)
    for cached in range(len(TWO.ids)):
        for chunk in (1, 3, 7):
            rows, number = bring(engine, TWO.images)
            holder, again = (media_stream(index, TWO, rows, NEW_TOKENS) for index in (1, 2))
            running = router(engine, number, chunk=chunk)
            running.start(holder)
            while not holder.tokens:
                running.step()
            running.start(again, prefix_of=holder, cached=cached)
            running.run()
            assert (again.tokens, again.logprobs) == (whole.tokens, logprobs)


def test_in_one_step_a_chunk_reads_what_the_step_encodes(name: str, engine: Engine) -> None:
    engine.clear_cache(None)
    engine.put_media(SMALL.put(7))
    stream = media_stream(0, FIRST, {SMALL: 5}, NEW_TOKENS)

    def send(plan: StepPlan, masks: MaskSource) -> Callable[[], StepReply]:
        encode = [Encode(7, 0, 3, 5, SMALL.rows)] if plan.number == 0 else []
        return engine.step(replace(plan, encode=encode), masks).result

    Router(send, SERVING, vocab_size=99).run(stream)
    assert_is_expected(name, FIRST, stream)


@pytest.mark.parametrize("name", ["llava", "qwen3 vl", "gemma3 images"])
def test_two_ranks_compute_what_one_does(
    name: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_rank(group: TensorParallelGroup) -> list[Stream]:
        engine = media_engine(load(folder_of(name), group=group), KINDS[name].encoder(), monkeypatch, group)
        return generations(engine, TWO, FIRST, chunk=3)

    first, second = together([partial(of_rank, group) for group in thread_groups(2)])
    assert [stream.tokens for stream in first] == [stream.tokens for stream in second]
    for prompt, stream in zip((TWO, FIRST), first, strict=True):
        assert_is_expected(name, prompt, stream)


@pytest.mark.parametrize("name", ["qwen3 vl"])
def test_a_step_in_overlapped_halves_equals_a_whole_one(
    name: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels of an image are added to both halves."""
    monkeypatch.setattr("text_generation_server.layers.infer.overlapped_halves._TILES", 4)
    engine = media_engine(load(folder_of(name)), KINDS[name].encoder(), monkeypatch)
    monkeypatch.setattr(engine._model._halves._group, "overlapped_bytes", 1)
    (stream,) = generations(engine, TWO)
    assert_is_expected(name, TWO, stream)


@pytest.mark.parametrize("name", ["llava", "qwen3 vl"])
def test_deterministic_results_do_not_depend_on_chunks_or_batch(
    name: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit."""
    engine = media_engine(load(folder_of(name)), KINDS[name].encoder(), monkeypatch, deterministic=True)
    many = generations(engine, TWO, SWAPPED, FIRST, scored=False, chunk=2, pause=0.2)
    for prompt, stream in zip((TWO, SWAPPED, FIRST), many, strict=True):
        (alone,) = generations(engine, prompt, scored=False)
        assert (stream.tokens, stream.logprobs) == (alone.tokens, alone.logprobs)

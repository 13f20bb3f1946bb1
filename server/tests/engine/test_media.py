"""The rules of media: what PutMedia, plans and requests may say, by an engine over the fake model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engine_driver import make_engine, make_request
from support.fake_model import FakeModel
from support.media import LIMITS, TOKEN, FakeEncoder, Image, media_engine
from torch import Tensor

from text_generation_server.engine import media_cost, media_plans
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.media_cost import measured_media_cost
from text_generation_server.engine.media_requests import Encode, MediaInfo, MediaSpan
from text_generation_server.engine.requests import Chunk, Request, StepPlan
from text_generation_server.errors import InvalidRequest, NotReady, OutOfMemory

IMAGE = Image(8, 12, 1)
SPAN = MediaSpan(2, 6, 4, 2, 3)
IDS = [1, 2, *[TOKEN] * 6, 3]


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder(hidden=8, axes=True)


@pytest.fixture
def engine(encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return media_engine(FakeModel(), encoder, monkeypatch)  # type: ignore[arg-type]


def asking(*spans: MediaSpan, row: int = 1, ids: list[int] = IDS, **fields: object) -> Request:
    return replace(make_request(row, ids, **fields), media=spans)  # type: ignore[arg-type]


def encoding(number: int = 0, item: int = 3, first: int = 0, layers: int = 3, row: int = 4, rows: int = 6) -> StepPlan:
    return StepPlan(number, encode=[Encode(item, first, layers, row, rows)])


def computing(plan: StepPlan, *requests: Request) -> StepPlan:
    """The plan, with the whole prompts of requests."""
    chunks = [Chunk(each.row, each.cached_length, len(each.input_ids) - each.cached_length) for each in requests]
    return replace(plan, admit=requests, chunks=chunks)


def test_info_names_the_encoder(engine: Engine) -> None:
    assert engine.info.media == MediaInfo(TOKEN, layers=3, axes=True)


def test_a_model_without_an_encoder_takes_no_media(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="`media_rows` must be 0"):
        media_engine(FakeModel(), None, monkeypatch)  # type: ignore[arg-type]
    text = media_engine(FakeModel(), None, monkeypatch, limits=replace(LIMITS, media_rows=0))  # type: ignore[arg-type]
    assert text.info.media is None
    with pytest.raises(InvalidRequest, match="no media is served"):
        text.put_media(IMAGE.put(1))
    (failure,) = text.step(computing(StepPlan(0), asking(SPAN))).result().failures
    assert failure.message == "`media` must be empty: this shard serves text alone"


def test_spans_that_look_ahead_are_not_served_in_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, limits = FakeEncoder(8, whole_spans=True), replace(LIMITS, media_rows=0)
    assert media_engine(FakeModel(), ahead, monkeypatch, limits=limits, deterministic=True).info.media is None  # type: ignore[arg-type]
    assert media_engine(FakeModel(), ahead, monkeypatch, limits=limits).info.media is not None  # type: ignore[arg-type]


def test_layers_run_in_the_ranges_of_the_plans(engine: Engine, encoder: FakeEncoder) -> None:
    engine.put_media(IMAGE.put(3))
    encoder.runs.clear()
    for number, (first, layers) in enumerate(((0, 1), (1, 1), (2, 1))):
        reply = engine.step(encoding(number, first=first, layers=layers)).result()
        assert reply.timings.encode_ns > 0
        assert reply.timings.forward_ns >= reply.timings.encode_ns
    assert encoder.runs == [(0, 1), (1, 1), (2, 1)]
    assert engine.step(StepPlan(3)).result().timings.encode_ns == 0


def test_the_same_item_again_changes_nothing(engine: Engine) -> None:
    for _ in range(2):
        engine.put_media(IMAGE.put(3))
    engine.step(encoding(layers=1)).result()
    engine.put_media(IMAGE.put(3))
    engine.step(encoding(1, first=1, layers=2)).result()


BAD_PUTS: dict[str, tuple[dict[str, object], str]] = {
    "rows": ({"rows": 5}, "`rows` is 5, and the encoder makes 6 of `views`"),
    "views": ({"views": ((7, 12),)}, "`views` must have sides that 4 divides"),
    "no views": ({"views": ()}, "`views` must have sides"),
    "bytes": ({"pixels": np.zeros(3, dtype=np.uint8)}, "3 bytes came, and `views` have 288"),
    "pixels": ({"views": ((4, 68),)}, "`views` have 272 pixels, more than the `max_media_pixels` of Warmup, 256"),
}


@pytest.mark.parametrize("name", list(BAD_PUTS))
def test_wrong_items_are_refused_by_name(name: str, engine: Engine) -> None:
    changes, message = BAD_PUTS[name]
    with pytest.raises(InvalidRequest, match=message):
        engine.put_media(IMAGE.put(3, **changes))
    with pytest.raises(InvalidRequest, match="item 3, which PutMedia has not brought"):
        engine.step(encoding())


def test_pixels_that_wait_are_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_plans, "_PIXELS_AHEAD", 0)
    # Two of the largest items: 2 * 3 * 256 bytes, of which each takes 288.
    for item in range(5):
        engine.put_media(IMAGE.put(item))
    with pytest.raises(OutOfMemory, match="5 items wait to be encoded and take 1440 of 1536 bytes"):
        engine.put_media(IMAGE.put(9))
    engine.step(StepPlan(0, forget=[0, 77])).result()
    engine.put_media(IMAGE.put(9))
    engine.clear_cache(None)
    for item in range(5):
        engine.put_media(IMAGE.put(item))


def test_before_warmup_nothing_is_taken(encoder: FakeEncoder) -> None:
    model = FakeModel()
    model.encoder = encoder
    with pytest.raises(NotReady):
        make_engine(model, limits=None).put_media(IMAGE.put(1))


BAD_PLANS: dict[str, tuple[StepPlan, str]] = {
    "unknown": (encoding(item=8), "item 8, which PutMedia has not brought"),
    "forgotten": (replace(encoding(), forget=[3]), "item 3, which PutMedia has not brought"),
    "late": (encoding(first=1, layers=2), "layers 1 to 2 of item 3, but of the 3 layers 0 are computed"),
    "too many": (encoding(layers=4), "layers 0 to 3 of item 3, but of the 3 layers 0"),
    "none": (encoding(layers=0), "layers 0 to -1 of item 3"),
    "rows": (encoding(rows=5), "rows 4 to 8; it makes 6, and the media pool has 40"),
    "pool": (encoding(row=35), "rows 35 to 40; it makes 6, and the media pool has 40"),
    "two": (
        StepPlan(0, encode=[Encode(3, 0, 1, 4, 6), Encode(4, 0, 3, 10, 6)]),
        "`encode` names item 4 while 3 is under way",
    ),
    "again": (
        StepPlan(0, encode=[Encode(3, 0, 3, 4, 6), Encode(3, 0, 3, 4, 6)]),
        "item 3, which PutMedia has not brought",
    ),
    "unwritten": (computing(StepPlan(0), asking(SPAN)), "reads rows 4 to 9 of the media pool, and not all are encoded"),
    "elsewhere": (computing(encoding(row=5), asking(SPAN)), "reads rows 4 to 9 of the media pool, and not all"),
}


@pytest.mark.parametrize("name", list(BAD_PLANS))
def test_wrong_plans_change_nothing(name: str, engine: Engine) -> None:
    plan, message = BAD_PLANS[name]
    for item in (3, 4):
        engine.put_media(IMAGE.put(item))
    with pytest.raises(InvalidRequest, match=message):
        engine.step(plan)
    reply = engine.step(computing(encoding(), asking(SPAN))).result()
    assert (list(reply.rows), reply.failures) == ([1], [])


def test_an_item_is_forgotten_half_way(engine: Engine) -> None:
    for item in (3, 4):
        engine.put_media(IMAGE.put(item))
    engine.step(encoding(layers=2)).result()
    engine.step(replace(encoding(1, item=4), forget=[3])).result()
    with pytest.raises(InvalidRequest, match="item 3, which PutMedia has not brought"):
        engine.step(encoding(2, first=2, layers=1))


BAD_REQUESTS: dict[str, tuple[Request, str]] = {
    "order": (asking(SPAN, MediaSpan(0, 1, 0, 1, 1)), "`media` must be ascending and apart: position 0 comes after 8"),
    "overlap": (asking(SPAN, replace(SPAN, first=7)), "position 7 comes after 8"),
    "empty": (asking(replace(SPAN, length=0)), "positions 2 to 1 of a prompt of 9 tokens"),
    "length": (asking(replace(SPAN, first=4)), "positions 4 to 9 of a prompt of 9 tokens"),
    "answer": (asking(SPAN, num_generated=2), "positions 2 to 7 of a prompt of 7 tokens"),
    "ids": (asking(replace(SPAN, first=3)), "`input_ids` must be 9 at all positions of a span"),
    "grid": (asking(replace(SPAN, grid_width=2)), "a span of 6 positions and a grid of 2 x 2"),
    "no grid": (asking(replace(SPAN, grid_height=0, grid_width=0)), "a grid of 0 x 0"),
    "pool": (asking(replace(SPAN, row=35)), "rows 35 to 40 of a media pool of 40"),
}


@pytest.mark.parametrize("name", list(BAD_REQUESTS))
def test_wrong_requests_fail_alone(name: str, engine: Engine) -> None:
    engine.put_media(IMAGE.put(3))
    bad, message = BAD_REQUESTS[name]
    good = asking(SPAN, row=2)
    reply = engine.step(computing(encoding(), bad, good)).result()
    assert [(each.row, each.reason) for each in reply.failures] == [(1, "invalid_request")]
    assert message in reply.failures[0].message
    assert list(reply.rows) == [2]


def test_rows_of_cached_positions_are_not_read(engine: Engine) -> None:
    elsewhere = replace(SPAN, row=1000)
    reply = engine.step(StepPlan(0, admit=[asking(elsewhere, cached_length=8)], chunks=[Chunk(1, 8, 1)])).result()
    # The positions were never computed, so that the fake model finds nothing sound there.
    assert [each.reason for each in reply.failures] == ["numerical_error"]
    reply = engine.step(StepPlan(1, admit=[asking(elsewhere, row=2, cached_length=7)])).result()
    assert "rows 1000 to 1005 of a media pool of 40" in reply.failures[0].message


def test_a_chunk_ends_where_a_span_does_that_looks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = media_engine(FakeModel(), FakeEncoder(8, whole_spans=True), monkeypatch)  # type: ignore[arg-type]
    engine.put_media(IMAGE.put(3))
    engine.step(encoding()).result()
    request = asking(SPAN)
    with pytest.raises(InvalidRequest, match="ends at position 5, within a span that goes to 7"):
        engine.step(StepPlan(1, admit=[request], chunks=[Chunk(1, 0, 6)]))
    for number, chunk in enumerate((Chunk(1, 0, 2), Chunk(1, 2, 6), Chunk(1, 8, 1)), start=1):
        admit = [request] if number == 1 else []
        reply = engine.step(StepPlan(number, admit=admit, chunks=[chunk])).result()
    assert list(reply.rows) == [1]


def test_where_the_prefix_is_cached_a_chunk_may_begin_within_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = media_engine(FakeModel(), FakeEncoder(8, whole_spans=True), monkeypatch)  # type: ignore[arg-type]
    engine.put_media(IMAGE.put(3))
    engine.step(encoding()).result()
    request = asking(SPAN, cached_length=4)
    reply = engine.step(StepPlan(1, admit=[request], chunks=[Chunk(1, 4, 4)])).result()
    assert reply.failures == []


def test_rows_are_unwritten_after_everything_is_cleared(engine: Engine) -> None:
    engine.put_media(IMAGE.put(3))
    engine.step(encoding()).result()
    engine.clear_cache(None)
    with pytest.raises(InvalidRequest, match="not all are encoded"):
        engine.step(computing(StepPlan(0), asking(SPAN)))


class _Poisoned(FakeEncoder):
    poisoned = True

    def finish(self, state: list[Tensor]) -> Tensor:
        rows = super().finish(state)
        if self.poisoned:
            rows[3, 0, 2] = float("nan")
        return rows


def test_embeddings_that_are_not_finite_fail_the_requests_that_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = _Poisoned(8, axes=True)
    engine = media_engine(FakeModel(), encoder, monkeypatch)  # type: ignore[arg-type]
    engine.put_media(IMAGE.put(3))
    engine.put_media(IMAGE.put(4))
    first, text = asking(SPAN), make_request(2)
    reply = engine.step(computing(encoding(), first, text)).result()
    assert [(each.row, each.reason) for each in reply.failures] == [(1, "numerical_error")]
    assert "embeddings of an item of `media`" in reply.failures[0].message
    assert list(reply.rows) == [2]
    # Later readers of the same rows fail too, until a sound item is written there.
    second = asking(SPAN, row=3)
    reply = engine.step(computing(StepPlan(1, drop=[1]), second)).result()
    assert [each.row for each in reply.failures] == [3]
    encoder.poisoned = False
    reply = engine.step(computing(replace(encoding(2, item=4), drop=[3]), asking(SPAN, row=4))).result()
    assert (list(reply.rows), reply.failures) == ([4], [])


def test_the_cost_rises_with_the_pixels(encoder: FakeEncoder, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = measured_media_cost(encoder, engine._group, 1024, torch.device("cpu"))
    assert list(cost.pixels) == [16, 64, 256, 512, 1024]
    assert list(cost.times_ms) == sorted(cost.times_ms)
    assert cost.times_ms[0] > 0
    monkeypatch.setattr(media_cost, "_BUDGET_S", 0.0)
    encoder.runs.clear()
    guessed = measured_media_cost(encoder, engine._group, 1024, torch.device("cpu"))
    assert guessed.times_ms[-1] == pytest.approx(guessed.times_ms[0] * 64)
    assert len(encoder.runs) == 4


@pytest.mark.parametrize("regained", [False, True])
def test_warmup_measures_once(encoder: FakeEncoder, regained: bool) -> None:
    model = FakeModel()
    model.encoder = encoder
    engine = make_engine(model, limits=None)
    cost = engine.warmup(replace(LIMITS, regained=regained)).media_cost
    assert bool(cost.pixels) != regained


def test_warmup_needs_the_size_of_the_largest_item(encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="`max_media_pixels` must be above 0"):
        media_engine(FakeModel(), encoder, monkeypatch, limits=replace(LIMITS, max_media_pixels=0))  # type: ignore[arg-type]

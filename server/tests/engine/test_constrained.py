"""Rows that choose under masks, beside rows that do not: the engine against the fake model's own arithmetic."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.engine_driver import SERVING, directly, make_engine, make_request, stream
from support.fake_model import FakeModel
from support.router import Router, Stream, mask_write

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.mask_pool import MaskPool
from text_generation_server.engine.requests import (
    Chunk,
    MaskForm,
    MaskSource,
    MaskWrite,
    StepMasks,
    StepPlan,
    StepReply,
)
from text_generation_server.errors import InvalidRequest

VOCAB = 64
CHOOSERS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5, "temperature": 2.0},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": ((8, 5.0), (9, 50.0))},
    {"do_sample": True, "seed": 2, "top_p": 0.8, "top_k": 5, "watermark": True},
]


@pytest.fixture(scope="module")
def served() -> Engine:
    return make_engine(eos_token_ids=(4,))


@pytest.fixture
def engine(served: Engine) -> Engine:
    served.clear_cache(None)
    return served


def even_or_late(tokens: Sequence[int]) -> list[int]:
    """Even ids, and after an id above 31 only ids above it."""
    least = tokens[-1] + 1 if tokens and 31 < tokens[-1] < 62 else 0
    return [token for token in range(0, VOCAB, 2) if token >= least]


def with_masks(*writes: MaskWrite, rows: Sequence[int], slots: Sequence[int]) -> MaskSource:
    return lambda number: StepMasks(number, writes, rows, slots)


def prefill(engine: Engine, count: int, masks: MaskSource, constrained: Sequence[int], **options: Any) -> StepReply:
    requests = [make_request(row, (1, 2, row), **options) for row in range(count)]
    chunks = [Chunk(row, 0, 3) for row in range(count)]
    return engine.step(StepPlan(0, admit=requests, chunks=chunks, constrained=constrained), masks).result()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("parameters", CHOOSERS, ids=["greedy", "sampled", "penalties", "filters"])
def test_only_allowed_ids_come_out_and_free_rows_notice_nothing(
    engine: Engine, parameters: dict[str, Any], depth: int
) -> None:
    def streams(constrained: bool) -> list[Stream]:
        grammar = even_or_late if constrained else None
        mixed = [stream(n, [n, 7], 8, allowed=grammar, **parameters) for n in range(3)]
        return [*mixed, *(stream(n, [n, 9], 8, **parameters) for n in range(3, 6))]

    masked, free = streams(True), streams(False)
    Router(directly(engine), SERVING, chunk=1, depth=depth).run(*masked)
    engine.clear_cache(None)
    Router(directly(engine), SERVING, chunk=1, depth=depth).run(*free)
    for each in masked[:3]:
        tokens = each.tokens
        assert len(tokens) == 8
        assert all(token in even_or_late(tokens[:n]) for n, token in enumerate(tokens))
    for each, alike in zip(masked[3:], free[3:], strict=True):
        assert (each.tokens, each.logprobs) == (alike.tokens, alike.logprobs)


def test_log_probabilities_are_those_of_what_is_allowed(engine: Engine) -> None:
    each = stream(1, [5, 6], 8, top_n_tokens=3, allowed=even_or_late)
    Router(directly(engine), SERVING, depth=2).run(each)
    for n, (token, logprob, top) in enumerate(zip(each.tokens, each.logprobs, each.tops, strict=True)):
        logits = FakeModel().logits_after([5, 6, *each.tokens[:n]])
        excluded = torch.ones(VOCAB, dtype=torch.bool)
        excluded[even_or_late(each.tokens[:n])] = False
        expected = logits.masked_fill(excluded, -torch.inf).log_softmax(0)
        assert token == int(expected.argmax())
        assert logprob == pytest.approx(float(expected[token]), abs=1e-5)
        assert list(top.ids)[:1] == [token]
        assert set(top.ids) <= set(even_or_late(each.tokens[:n]))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 257])
def test_every_form_of_a_mask_says_the_same(vocab_size: int) -> None:
    pool = MaskPool(5, vocab_size, torch.device("cpu"))
    ids = [token for token in range(vocab_size) if token % 3 == 0]
    pool.write([mask_write(1 + n, ids, form, vocab_size) for n, form in enumerate(MaskForm)])
    bits = np.unpackbits(pool.bits.numpy().view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
    assert bits[0].all()
    for slot in (1, 2, 3):
        assert bits[slot].nonzero()[0].tolist() == ids
    assert not bits[4].any()


def test_a_mask_holds_for_one_step_and_goes_with_its_owner(engine: Engine) -> None:
    """What stands in a row is of nobody who chooses without masks: later in the same request, and in the next one."""
    reply = prefill(engine, 2, with_masks(mask_write(3, [11], MaskForm.ONLY), rows=[0, 1], slots=[3, 3]), [0, 1])
    assert reply.ids == [11, 11]
    free = engine.step(StepPlan(1, decode=[0])).result()
    assert free.ids == [int(FakeModel().logits_after([1, 2, 0, 11]).argmax())]
    again = StepPlan(2, drop=[1], admit=[make_request(1, (9, 8))], chunks=[Chunk(1, 0, 2)], decode=[0], constrained=[0])
    reply = engine.step(again, with_masks(rows=[0], slots=[3])).result()
    assert reply.ids == [11, int(FakeModel().logits_after([9, 8]).argmax())]


def test_slot_0_allows_everything(engine: Engine) -> None:
    reply = prefill(engine, 1, with_masks(rows=[0], slots=[0]), [0])
    assert reply.ids == [int(FakeModel().logits_after([1, 2, 0]).argmax())]


def test_a_row_whose_mask_allows_nothing_fails_alone(engine: Engine) -> None:
    nothing = mask_write(1, [], MaskForm.BITS)
    reply = prefill(engine, 3, with_masks(nothing, rows=[1], slots=[1]), [1])
    assert reply.rows == [0, 2]
    assert [(f.request_id, f.row, f.reason) for f in reply.failures] == [(1, 1, "no_token_allowed")]
    reply = engine.step(StepPlan(1, decode=[0, 1, 2], constrained=[1]), with_masks(rows=[1], slots=[0])).result()
    assert (reply.rows, reply.failures) == ([0, 2], [])


def test_a_mask_of_nothing_but_a_banned_end_fails_that_row(engine: Engine) -> None:
    only_end = mask_write(1, [4], MaskForm.ONLY)
    reply = prefill(engine, 1, with_masks(only_end, rows=[0], slots=[1]), [0], min_new_tokens=2)
    assert [f.reason for f in reply.failures] == ["no_token_allowed"]
    assert "min_new_tokens" in reply.failures[0].message


def test_nan_under_a_mask_is_told_as_such() -> None:
    model = FakeModel()
    model.poison = {2}
    engine = make_engine(model)
    request = make_request(0, (1, 2))
    plan = StepPlan(0, admit=[request], chunks=[Chunk(0, 0, 2)], constrained=[0])
    masks = with_masks(mask_write(1, [3], MaskForm.ONLY), rows=[0], slots=[1])
    assert [f.reason for f in engine.step(plan, masks).result().failures] == ["numerical_error"]


def test_masks_of_a_refused_request_are_taken_nevertheless(engine: Engine) -> None:
    """They come whatever becomes of it, and later steps may use what they write."""
    refused = make_request(0, (VOCAB,))
    plan = StepPlan(0, admit=[refused], chunks=[Chunk(0, 0, 1)], constrained=[0])
    reply = engine.step(plan, with_masks(mask_write(5, [33], MaskForm.ONLY), rows=[0], slots=[5])).result()
    assert [f.reason for f in reply.failures] == ["invalid_request"]
    good = StepPlan(1, admit=[make_request(1, (3,))], chunks=[Chunk(1, 0, 1)], constrained=[1])
    assert engine.step(good, with_masks(rows=[1], slots=[5])).result().ids == [33]


@pytest.mark.parametrize(
    ("plan", "masks", "message"),
    [
        ({"decode": [0], "constrained": [1]}, [], "`constrained` names row 1, which gets no token in this step"),
        ({"decode": [0], "constrained": [0, 0]}, [], "`constrained` names a row twice"),
        ({"decode": [0, 1], "constrained": [0, 1]}, [0], "row 1 is in `constrained` but has no mask"),
        ({"decode": [0, 1], "constrained": [0]}, [0, 1], "row 1 is in `rows` of Constrain but not `constrained`"),
        ({"decode": [0], "constrained": [0]}, [0, 0], "`rows` names a row twice"),
    ],
)
def test_rows_that_do_not_fit(engine: Engine, plan: dict[str, list[int]], masks: list[int], message: str) -> None:
    prefill(engine, 2, with_masks(rows=[], slots=[]), [])
    with pytest.raises(InvalidRequest, match=message):
        engine.step(StepPlan(1, **plan), with_masks(rows=masks, slots=[1] * len(masks)))


def test_a_chunk_that_is_not_the_last_has_no_choice_to_constrain(engine: Engine) -> None:
    plan = StepPlan(0, admit=[make_request(0, (1, 2, 3))], chunks=[Chunk(0, 0, 2)], constrained=[0])
    with pytest.raises(InvalidRequest, match="row 0, which gets no token"):
        engine.step(plan, with_masks(rows=[0], slots=[1]))
    engine.clear_cache(None)
    plan = StepPlan(0, admit=[make_request(0, (1,))], chunks=[Chunk(0, 0, 1)], constrained=[0])
    with pytest.raises(InvalidRequest, match="nobody brings masks"):
        engine.step(plan)

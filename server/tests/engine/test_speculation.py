"""Steps that compute windows of drafted tokens: the text is the text without them, whoever drafts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.engine_driver import LIMITS, engine_with, make_engine
from support.fake_model import FakeModel
from support.loading import load
from support.windows import NEW_TOKENS, PROMPTS, SETTINGS, Reader, request, run

from text_generation_kernels import Drafts, Sequences, Windows
from text_generation_server.engine import speculation
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import (
    Chunk,
    Grant,
    NextTokenChooserParameters,
    Request,
    SlotRange,
    StepPlan,
)
from text_generation_server.errors import EngineError, InvalidRequest, OutOfSlots

Drafter = Callable[[list[int], int], list[int]]
"""Turns a text and the number of drafts into drafts."""


def text_of(
    engine: Engine,
    requests: Sequence[Request],
    width: int,
    drafter: Drafter | None = None,
    adapters: Sequence[Path] = (),
) -> Reader:
    """Runs requests to their ends, with windows of `width` tokens. `drafter` takes the place of the server's own."""
    with pytest.MonkeyPatch.context() as patch:
        if drafter is not None:
            patch.setattr(speculation, "ngram_draft", partial(draft_by, drafter))
        return run(engine, requests, width, adapters)


def draft_by(drafter: Drafter, windows: Windows, sequences: Sequences, drafts: Drafts) -> None:
    for row in windows.rows.tolist():
        ids = drafter(drafts.tokens[row, : int(sequences.length[row])].tolist(), drafts.most)
        drafts.ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        drafts.counts[row] = len(ids)


def speculating(drafts: int = 3, **options: Any) -> Engine:
    return make_engine(options=EngineOptions(speculate=drafts, **options), eos_token_ids=[2])


@pytest.fixture(scope="module")
def plain() -> Engine:
    return make_engine(eos_token_ids=[2])


@pytest.fixture(scope="module")
def served() -> Engine:
    return speculating()


def asked() -> list[Request]:
    return [request(row, PROMPTS[row % len(PROMPTS)], **settings) for row, settings in enumerate(SETTINGS)]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_text_is_that_without_speculation(plain: Engine, served: Engine, width: int) -> None:
    expected, found = text_of(plain, asked(), 1), text_of(served, asked(), width)
    assert found.ids == expected.ids
    assert found.tops == expected.tops
    for row, logprobs in expected.logprobs.items():
        assert found.logprobs[row] == pytest.approx(logprobs, abs=1e-5)


def right_of(expected: Reader, requests: Sequence[Request]) -> Drafter:
    texts = [[*each.input_ids.tolist(), *expected.ids[each.row]] for each in requests]

    def draft(text: list[int], count: int) -> list[int]:
        whole = next(each for each in texts if each[: len(text)] == text)
        return whole[len(text) : len(text) + count]

    return draft


def test_windows_of_adapters_that_change_the_head(tmp_path: Path) -> None:
    write_adapter(AdapterCase("biased", {"target_modules": ["embed_tokens", "lm_head"]}), tmp_path / "adapter")
    base, adapters = write_base("biased", tmp_path / "base"), [tmp_path / "adapter"]
    requests = [replace(each, adapter=each.row % 2) for each in asked()]
    plain = engine_with(load(base), LIMITS, adapters, eos_token_ids=[2])
    drafting = engine_with(load(base), LIMITS, adapters, options=EngineOptions(speculate=3), eos_token_ids=[2])
    expected = text_of(plain, requests, 1, adapters=adapters)
    found = text_of(drafting, requests, 4, right_of(expected, requests), adapters)
    assert found.ids == expected.ids
    assert found.steps < expected.steps
    assert text_of(drafting, asked(), 4).ids != expected.ids


def test_right_drafts_are_all_accepted(plain: Engine, served: Engine) -> None:
    requests = [request(row, prompt, do_sample=True, seed=row) for row, prompt in enumerate(PROMPTS)]
    expected = text_of(plain, requests, 1)
    found = text_of(served, requests, 4, right_of(expected, requests))
    assert found.ids == expected.ids
    # One token of the prompt's step, then four a step.
    assert found.steps == 1 + -(-(NEW_TOKENS - 1) // 4)


LIARS: dict[str, Drafter] = {
    "none": lambda text, count: [] * count,
    "wrong": lambda text, count: [(text[-1] + 1 + j) % 64 for j in range(count)],
    "of an end": lambda text, count: [2] * count,
    "of one token": lambda text, count: [text[-1]] * count,
}


@pytest.mark.parametrize("drafter", LIARS.values(), ids=LIARS.keys())
def test_drafts_cannot_change_the_text(plain: Engine, served: Engine, drafter: Drafter) -> None:
    assert text_of(served, asked(), 4, drafter).ids == text_of(plain, asked(), 1).ids


def test_half_right_drafts_are_accepted_up_to_the_first_wrong_one(plain: Engine, served: Engine) -> None:
    requests = [request(0, PROMPTS[0])]
    expected = text_of(plain, requests, 1)
    right = right_of(expected, requests)

    def half(text: list[int], count: int) -> list[int]:
        ids = right(text, count)
        return [*ids[:1], *((each + 1) % 64 for each in ids[1:])]

    found = text_of(served, requests, 4, half)
    assert found.ids == expected.ids
    assert found.steps == 1 + -(-(NEW_TOKENS - 1) // 2)


def test_text_that_repeats_itself_takes_fewer_steps(plain: Engine, served: Engine) -> None:
    # The bias makes every choice the same token.
    requests = [request(0, [4, 4, 4, 4], logit_bias=((4, 100.0),))]
    found = text_of(served, requests, 4)
    assert found.ids == text_of(plain, requests, 1).ids
    assert found.steps < NEW_TOKENS / 2


def test_a_request_without_an_end_speculates_within_its_slots(plain: Engine, served: Engine) -> None:
    endless = Request(0, 0, np.array([4, 4, 4]), NextTokenChooserParameters(), (SlotRange(0, 8),))
    served.clear_cache(None)
    found = Reader()
    found.read(served.step(StepPlan(0, admit=[endless], chunks=[Chunk(0, 0, 3)])).result())
    for number in range(1, 6):
        found.read(served.step(StepPlan(number, decode=[0], widths=[4])).result())
    # The last token of a text needs no slot.
    assert len(found.ids[0]) == 6
    assert found.ids[0] == text_of(plain, [request(0, [4, 4, 4], 12)], 1).ids[0][:6]
    served.clear_cache(None)
    served.step(StepPlan(0, admit=[endless], chunks=[Chunk(0, 0, 3)])).result()
    for number in range(1, 6):
        served.step(StepPlan(number, decode=[0], widths=[4])).result()
    with pytest.raises(OutOfSlots, match="position 8 of row 0 has no slot: it holds 8"):
        served.step(StepPlan(6, decode=[0], widths=[4]))


def test_grants_may_come_as_they_are_needed(plain: Engine, served: Engine) -> None:
    """The slots of wrong drafts serve the tokens that come instead."""
    expected = text_of(plain, [request(0, PROMPTS[0])], 1).ids[0]
    served.clear_cache(None)
    short = Request(0, 0, np.array(PROMPTS[0]), NextTokenChooserParameters(), (SlotRange(0, 9),), max_new_tokens=12)
    found = Reader()
    found.read(served.step(StepPlan(0, admit=[short], chunks=[Chunk(0, 0, 5)])).result())
    number, held = 0, 9
    while len(found.ids[0]) < NEW_TOKENS:
        number += 1
        needed = min(5 + len(found.ids[0]) + 3, 5 + NEW_TOKENS - 1)
        grants = [Grant(0, (SlotRange(100 + held, needed - held),))] if needed > held else []
        held = max(held, needed)
        found.read(served.step(StepPlan(number, grants=grants, decode=[0], widths=[4])).result())
    assert found.ids[0] == expected


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"decode": [0], "widths": [5]}, "`widths` must be from 1 to 4 on this shard"),
        ({"decode": [0], "widths": [3]}, "the largest of `widths` must be 1 or one of 2, 4, not 3"),
        ({"decode": [0], "widths": [2, 2]}, "`widths` names 2 widths, but `decode` 1 rows"),
    ],
)
def test_widths_that_plans_must_not_have(served: Engine, plan: dict[str, Any], message: str) -> None:
    served.clear_cache(None)
    served.step(StepPlan(0, admit=[request(0, [1, 2])], chunks=[Chunk(0, 0, 2)])).result()
    with pytest.raises(InvalidRequest, match=message):
        served.step(StepPlan(1, **plan))


def test_a_shard_without_speculation_refuses_widths(plain: Engine) -> None:
    plain.clear_cache(None)
    plain.step(StepPlan(0, admit=[request(0, [1, 2])], chunks=[Chunk(0, 0, 2)])).result()
    with pytest.raises(EngineError, match="from 1 to 1 on this shard"):
        plain.step(StepPlan(1, decode=[0], widths=[2]))


def test_a_row_that_has_ended_gets_nothing_and_writes_nothing(plain: Engine, served: Engine) -> None:
    """The router may send a plan for a row before it knows that the one before has ended it."""
    ending, other = request(0, [4, 4, 4, 4], 5, logit_bias=((4, 100.0),)), request(1, PROMPTS[1])
    expected = text_of(plain, [other], 1)
    served.clear_cache(None)
    found = Reader()
    chunks = [Chunk(0, 0, 4), Chunk(1, 0, 3)]
    found.read(served.step(StepPlan(0, admit=[ending, other], chunks=chunks)).result())
    for number in range(1, 5):
        reply = served.step(StepPlan(number, decode=[0, 1], widths=[4, 1])).result()
        found.read(reply)
        assert reply.counts == [4 if number == 1 else 0, 1]
    assert found.ids[0] == [4] * 5
    assert found.ids[1] == expected.ids[1][:5]


def test_info_says_what_plans_may_name(plain: Engine, served: Engine) -> None:
    assert (served.info.widths, plain.info.widths) == ((2, 4), ())
    assert (served.info.drafter, plain.info.drafter) == ("ngram", "")
    assert speculating(4).info.widths == (2, 4, 5)


def test_deterministic_steps_have_the_same_bits(served: Engine) -> None:
    del served
    expected = text_of(make_engine(options=EngineOptions(deterministic=True), eos_token_ids=[2]), asked(), 1)
    found = text_of(speculating(deterministic=True), asked(), 4)
    assert (found.ids, found.logprobs) == (expected.ids, expected.logprobs)


def test_limits_are_those_of_the_other_tests() -> None:
    assert LIMITS.max_batch_size >= len(SETTINGS)
    assert FakeModel().vocab_size == 64

"""Hints of plans: right ones save steps, and none changes a token or harms a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.engine_driver import make_engine
from support.windows import NEW_TOKENS, Hinter, Reader, request, run

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Hint, Request, StepPlan

PROMPTS = [[5, 6, 7, 8, 1], [1, 2, 3], [9, 8, 7, 6, 3, 4], [60, 1, 33]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"do_sample": True, "seed": 11, "temperature": 1.5, "top_p": 0.9, "top_k": 20},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
]
NUM_ROWS = 16


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **settings) for row, settings in enumerate(SETTINGS)]


@pytest.fixture(scope="module")
def expected() -> Reader:
    return run(make_engine(eos_token_ids=[2]), asked(), 1)


@pytest.fixture(scope="module")
def served() -> Engine:
    return make_engine(options=EngineOptions(speculate=3), eos_token_ids=[2])


def hint(row: int, at: int, ids: Sequence[int]) -> Hint:
    return Hint(row, at, np.array(ids, dtype=np.int64))


def once(expected: Reader, late: int = 0, change: int = -1) -> Hinter:
    """The whole answer, once, `late` tokens after its beginning, where place `change` has another token."""

    def hints(row: int, ids: Sequence[int]) -> list[Hint]:
        answer = list(expected.ids[row])
        if change >= 0:
            answer[change] = (answer[change] + 1) % 64
        return [hint(row, len(PROMPTS[row]), answer)] if len(ids) == late else []

    return hints


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_right_hint_is_all_accepted(served: Engine, expected: Reader, width: int) -> None:
    found = run(served, asked(), width, hinter=once(expected))
    assert found.ids == expected.ids
    # The prompt's step gives one token.
    assert found.steps == 1 + -(-(NEW_TOKENS - 1) // width)
    assert found.hinted == len(PROMPTS) * (found.steps - 1)


def test_a_hint_that_comes_late_fits_where_the_tokens_since_agree(served: Engine, expected: Reader) -> None:
    found = run(served, asked()[:1], 1, hinter=once(expected, late=5))
    assert (found.ids[0], found.hinted) == (expected.ids[0], NEW_TOKENS - 5)


def test_a_hint_is_used_up_to_its_first_wrong_token(served: Engine, expected: Reader) -> None:
    found = run(served, asked()[:1], 1, hinter=once(expected, change=6))
    # The step that chooses token 6 still drafts the wrong one.
    assert (found.ids[0], found.hinted) == (expected.ids[0], 6)


LIARS: dict[str, Hinter] = {
    "empty": lambda row, ids: [hint(row, len(PROMPTS[row]) + len(ids), [])],
    "wrong": lambda row, ids: [hint(row, len(PROMPTS[row]) + len(ids), [(row + j) % 64 for j in range(9)])],
    "too long": lambda row, ids: [hint(row, len(PROMPTS[row]) + len(ids), [7] * 5000)],
    "of an end": lambda row, ids: [hint(row, len(PROMPTS[row]) + len(ids), [2] * 64)],
    "out of the vocabulary": lambda row, ids: [hint(row, len(PROMPTS[row]) + len(ids), [2**32 - 1, 64, 5])],
    "of no row": lambda row, ids: [hint(2**32 - 1, 0, [1]), hint(NUM_ROWS, 0, [1]), hint(8, 0, [1])],
    "of the future": lambda row, ids: [hint(row, 2**32 - 1, [1, 2, 3])],
    "of the prompt": lambda row, ids: [hint(row, 0, [*PROMPTS[row], 3, 3, 3])],
    "several": lambda row, ids: [hint(row, 0, []), hint(row, 1, [4]), hint(row, len(PROMPTS[row]), [9] * 20)],
}


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("hinter", LIARS.values(), ids=LIARS.keys())
def test_hints_cannot_change_the_text(served: Engine, expected: Reader, hinter: Hinter, width: int) -> None:
    assert run(served, asked(), width, hinter=hinter).ids == expected.ids


@pytest.mark.parametrize("hinter", LIARS.values(), ids=LIARS.keys())
def test_a_shard_without_speculation_ignores_hints(expected: Reader, hinter: Hinter) -> None:
    assert run(make_engine(eos_token_ids=[2]), asked(), 1, hinter=hinter).ids == expected.ids


def test_a_hint_is_gone_with_its_request(served: Engine, expected: Reader) -> None:
    """The next owner of the row would choose the hint's tokens, as the one before did."""
    answer, prompt = expected.ids[0], PROMPTS[0]
    served.clear_cache(None)
    begun = StepPlan(0, admit=asked()[:1], chunks=[Chunk(0, 0, len(prompt))], hints=[hint(0, len(prompt), answer)])
    assert list(served.step(begun).result().ids) == answer[:1]
    assert list(served.step(StepPlan(1, decode=[0])).result().hinted) == [0]
    again = StepPlan(2, drop=[0], admit=asked()[:1], chunks=[Chunk(0, 0, len(prompt))])
    assert list(served.step(again).result().ids) == answer[:1]
    reply = served.step(StepPlan(3, decode=[0])).result()
    assert (list(reply.ids), list(reply.hinted)) == (answer[1:2], [])
    # The same after a pause, and a stale hint of it in a plan that drops the row changes nothing.
    served.step(StepPlan(4, drop=[0], hints=[hint(0, len(prompt), answer)])).result()
    served.step(StepPlan(5, admit=asked()[:1], chunks=[Chunk(0, 0, len(prompt))])).result()
    assert list(served.step(StepPlan(6, decode=[0])).result().hinted) == []

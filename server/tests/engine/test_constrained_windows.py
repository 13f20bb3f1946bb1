"""Rows that choose under masks get several tokens of a step, as many as there are masks: the tokens of single steps."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.engine_driver import make_engine
from support.router import mask_write
from support.windows import NEW_TOKENS, Reader, request

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.masks import MaskLimits, check_masks
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Hint, MaskForm, Request, StepMasks, StepPlan
from text_generation_server.errors import InvalidRequest

VOCAB = 64
PROMPTS = [[5, 6, 7, 8, 1], [1, 2, 3], [9, 8, 7, 6, 3, 4], [60, 1, 33], [7, 7, 7, 7, 7, 7]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"do_sample": True, "seed": 11, "temperature": 1.5, "top_p": 0.9, "top_k": 20},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {},
]
FREE = 4
"""The row without masks."""
Guess = Callable[[int, Sequence[int]], Sequence[int]]
"""What may follow the tokens of a row."""


def allowed(tokens: Sequence[int]) -> list[int]:
    """Every third token is forced; others have a remainder that their place says."""
    place = len(tokens)
    return [(7 * place) % VOCAB] if place % 3 == 0 else [token for token in range(VOCAB) if token % 5 == place % 5]


def nothing(row: int, tokens: Sequence[int]) -> Sequence[int]:
    return []


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **settings) for row, settings in enumerate(SETTINGS)]


def masks_of(number: int, rows: Sequence[int], texts: dict[int, list[int]], drafts: dict[int, list[int]]) -> StepMasks:
    """Masks of the next token of rows, and of those behind each draft that is allowed where it stands."""
    writes, slots, counts = [], [], []
    for row in rows:
        text, first = list(texts[row]), len(slots)
        for draft in [*drafts.get(row, []), None]:
            slots.append(1 + len(writes))
            writes.append(mask_write(slots[-1], allowed(text), MaskForm.ONLY))
            if draft is None or draft not in allowed(text):
                break
            text.append(draft)
        counts.append(len(slots) - first)
    return StepMasks(number, writes, rows, slots, counts)


class MaskedReader(Reader):
    """It knows how many steps of decodes had masks."""

    masked_steps = 0


def run(engine: Engine, width: int, guess: Guess = nothing) -> MaskedReader:
    engine.clear_cache(None)
    requests = asked()
    rows = [each.row for each in requests if each.row != FREE]
    found = MaskedReader()
    found.ids = {each.row: [] for each in requests}
    first = masks_of(0, rows, found.ids, {})
    chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in requests]
    found.read(engine.step(StepPlan(0, admit=requests, chunks=chunks, constrained=rows), lambda _: first).result())
    number = 0
    while left := [each.row for each in requests if len(found.ids[each.row]) < NEW_TOKENS]:
        number += 1
        masked = [row for row in left if row != FREE]
        found.masked_steps += bool(masked)
        drafts = {row: list(guess(row, found.ids[row]))[: width - 1] for row in masked}
        hints = [
            Hint(row, len(PROMPTS[row]) + len(found.ids[row]), np.array(ids)) for row, ids in drafts.items() if ids
        ]
        masks = masks_of(number, masked, found.ids, drafts)
        widths = [width] * len(left) if width > 1 else []
        plan = StepPlan(number, decode=left, widths=widths, constrained=masked, hints=hints)
        found.read(engine.step(plan, lambda _, masks=masks: masks).result())
    return found


@pytest.fixture(scope="module")
def expected() -> MaskedReader:
    return run(make_engine(), 1)


@pytest.fixture(scope="module")
def served() -> Engine:
    return make_engine(options=EngineOptions(speculate=3))


def test_masks_hold_and_matter(expected: MaskedReader) -> None:
    for row in range(FREE):
        tokens = expected.ids[row]
        assert all(token in allowed(tokens[:place]) for place, token in enumerate(tokens))
    assert any(token not in allowed(expected.ids[FREE][:place]) for place, token in enumerate(expected.ids[FREE]))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_right_drafts_bring_several_tokens(served: Engine, expected: MaskedReader, width: int) -> None:
    found = run(served, width, lambda row, tokens: expected.ids[row][len(tokens) :])
    assert (found.ids, found.tops) == (expected.ids, expected.tops)
    assert [found.logprobs[row] for row in range(5)] == [
        pytest.approx(expected.logprobs[row], abs=1e-5) for row in range(5)
    ]
    # The prompt's step gives one token.
    assert found.masked_steps == -(-(NEW_TOKENS - 1) // width)


def test_forced_tokens_alone(served: Engine, expected: MaskedReader) -> None:
    def forced(row: int, tokens: Sequence[int]) -> Sequence[int]:
        return allowed(tokens) if len(tokens) % 3 == 0 else []

    found = run(served, 4, forced)
    assert found.ids == expected.ids
    # Tokens 3, 6 and 9 bring the next one with them.
    assert found.masked_steps == expected.masked_steps - 3


GUESSES: dict[str, Guess] = {
    "none": nothing,
    "what its grammar forbids": lambda row, tokens: [1, 2, 3],
    "allowed and wrong": lambda row, tokens: [allowed([0] * (len(tokens) + j))[-1] for j in range(3)],
    "right, then forbidden": lambda row, tokens: [*allowed(tokens)[:1], 1, 1],
}


@pytest.mark.parametrize("guess", GUESSES.values(), ids=GUESSES)
@pytest.mark.parametrize("width", [2, 4])
def test_wrong_drafts_change_no_token(served: Engine, expected: MaskedReader, guess: Guess, width: int) -> None:
    """Where nobody tells what follows, the shard's own drafts bring no second token: it would have no mask."""
    assert run(served, width, guess).ids == expected.ids


def test_more_masks_than_the_window_has_tokens() -> None:
    engine = make_engine(options=EngineOptions(speculate=3))
    engine.step(StepPlan(0, admit=asked()[:1], chunks=[Chunk(0, 0, 5)])).result()
    masks = StepMasks(1, (), [0], [0, 0, 0], [3])
    with pytest.raises(InvalidRequest, match="`counts` of row 0 must be at most 2, the width of its window, not 3"):
        engine.step(StepPlan(1, decode=[0], widths=[2], constrained=[0]), lambda _: masks)


@pytest.mark.parametrize(
    ("slots", "counts", "message"),
    [
        ([0, 0], [1], "`slots` must hold as many slots as `counts` says: 2 for 1"),
        ([], [0], "`counts` must hold a number from 1 on for each of 1 rows, or none"),
        ([0], [1, 1], "`counts` must hold a number from 1 on for each of 1 rows, or none"),
    ],
)
def test_numbers_of_masks_that_do_not_fit(slots: list[int], counts: list[int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_masks(StepMasks(1, (), [0], slots, counts), MaskLimits(2, VOCAB))

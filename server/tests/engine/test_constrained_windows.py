"""Rows that choose under masks get several tokens of a step, as many as there are masks: the tokens of single steps."""

from collections.abc import Sequence

import pytest
from support.engine_driver import make_engine
from support.masked_windows import FREE, VOCAB, Guess, MaskedReader, allowed, asked, nothing, run
from support.windows import NEW_TOKENS

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.masks import MaskLimits, check_masks
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, StepMasks, StepPlan
from text_generation_server.errors import InvalidRequest


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

"""Answers with twenty settings, an adapter and prompts in chunks are the same to the bit, whoever drafts."""

import pytest
from support.same_text import DRAFTERS, SETTINGS, rounds


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_those_without_drafts(drafter: str) -> None:
    found = list(rounds(len(SETTINGS), [drafter]))
    assert sum(each.answers for each in found) >= len(SETTINGS)
    assert not any(each.different for each in found)

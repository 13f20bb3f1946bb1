"""Windows of drafted tokens that cross the end of a stretch of positions (Llama 4)."""

from pathlib import Path

import pytest
from support.engine_driver import make_engine
from support.families import model_of, write
from support.family_cases import CASES
from support.loading import load
from support.windows import PROMPTS, SETTINGS, request, run

from text_generation_server.engine.options import EngineOptions


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
def test_windows_change_no_token(deterministic: bool, tmp_path: Path) -> None:
    write(CASES["llama4"], model_of("llama4"), tmp_path)
    requests = [request(row, PROMPTS[row], **SETTINGS[row]) for row in range(4)]
    options = EngineOptions(deterministic=deterministic)
    expected = run(make_engine(load(tmp_path), options=options), requests, 1)
    options = EngineOptions(deterministic=deterministic, speculate=3)
    for width in (2, 4):
        found = run(make_engine(load(tmp_path), options=options), requests, width)
        assert found.ids == expected.ids

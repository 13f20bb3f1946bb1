"""Attention to the positions that an indexer chooses as it serves: in graphs, beside short chunks, on the device."""

from pathlib import Path

import pytest
import torch
from support.families import larger, write
from support.family_cases import CASES
from support.gpu_engine import alone, build, check, schedule

from text_generation_server.layers.infer import expanded

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["deepseek v3.2", "deepseek v4", "glm 5.2", "minimax m3", "glm 5.3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schedules have more ids and longer texts than the family's case."""
    path = tmp_path_factory.mktemp("sparse")
    write(CASES[request.param], larger(request.param, 384), path)
    return path


@pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])
def test_schedules_change_no_token(folder: Path, graphs: tuple[int, ...] | None) -> None:
    """In deterministic mode: chunks beside decodes, prefixes that are computed, pauses."""
    engine = build(folder, torch.bfloat16, deterministic=True, cuda_graphs=graphs)
    expected = alone(engine, 20)
    assert len({tuple(tokens) for tokens in expected}) > 15
    for seed in range(30):
        check(schedule(engine, seed, numbers=20, count=4, pause=0.03), expected, seed)


def test_graphs_and_expanded_contexts_change_no_token_in_the_default_mode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 few choices hang on the last bits."""
    monkeypatch.setattr(expanded, "LEAST_TOKENS", 1 << 20)
    expected = alone(build(folder, torch.float32, cuda_graphs=()), 20)
    monkeypatch.setattr(expanded, "WORTH", 0.1)
    monkeypatch.setattr(expanded, "LEAST_TOKENS", 16)
    engine = build(folder, torch.float32)
    for seed in range(3):
        assert check(schedule(engine, seed, numbers=20, count=15, pause=0.02), expected, seed) > 8

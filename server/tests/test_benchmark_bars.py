"""The bars of operators run: `python -m benchmark.kernels` times tiny sizes on a CPU."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_bar_has_rows_with_times() -> None:
    bars = importlib.import_module("benchmark.kernels.__main__").BARS
    plan = importlib.import_module("benchmark.kernels.timing").DRY_PLAN
    rows = {name: next(bar.rows(plan, 1e9)) for name, bar in bars.items()}
    for name, row in rows.items():
        assert any("microseconds" in key and value > 0 for key, value in row.items()), name


def test_a_bar_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark/kernels/__main__.py", "rms_norm", "--dry-run"])
    importlib.import_module("benchmark.kernels.__main__").main()
    printed = json.loads(capsys.readouterr().out)
    assert printed["command"] == "python -m benchmark.kernels rms_norm --dry-run"
    assert printed["benchmark"] == "rms_norm"
    assert [(row["hidden"], row["tokens"]) for row in printed["rows"]] == [(64, 1), (64, 8)]


def test_tuning_compiles_the_variants_that_lose_least() -> None:
    settings = importlib.import_module("benchmark.kernels.settings")
    times = {
        "small": {(1,): {1: 1.0}, (2,): {1: 2.0}, (3,): {1: 1.1, 2: 1.05}},
        "large": {(1,): {1: 90.0}, (2,): {1: 50.0}, (3,): {1: 55.0}},
    }
    assert settings.best_variants(times, 1) == ((3,),)
    assert settings.best_variants(times, 2) == ((1,), (2,))
    assert settings.best_variants(times, 4) == ((1,), (2,), (3,))
    assert settings.fastest(times["small"], [(2,), (3,)]) == (1.05, (3,), 2)

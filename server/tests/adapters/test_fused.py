"""Layers that leave adapters to fused operators, as on a GPU, give what separate operators give."""

from pathlib import Path

import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.adapters_on_device import on_device
from support.driver import Driver
from support.families import PROMPTS
from support.loading import load

import text_generation_kernels as kernels
from text_generation_server.engine.adapter_plans import AdapterChecker, Resident
from text_generation_server.engine.adapters import AdapterTables

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = [
    {"target_modules": ALL, "r": 20, "rank_pattern": {"q_proj": 65}},
    {"target_modules": ["v_proj", "down_proj"]},
    {"target_modules": ALL, "use_dora": True},
]


def fuse(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has layers use fused operators on a CPU, whose names it notes as they are called."""
    called: list[str] = []

    def noting(name: str) -> None:
        operator = getattr(kernels, name)

        def call(*arguments: object, **named: object) -> None:
            called.append(name)
            operator(*arguments, **named)

        monkeypatch.setattr(kernels, name, call)

    for name in ("adapted_gemv", "lora_delta", "adapted_linear", "linear_split_k"):
        noting(name)
    for name in ("adapted_gemv_takes", "lora_delta_takes", "leaves_partials"):
        monkeypatch.setattr(kernels, name, lambda *_: True)
    return called


def logits(base: Path, adapters: list[Path]) -> list[torch.Tensor]:
    """Of one token with each adapter, and of a step with all of them and the base."""
    model = load(base)
    checker = on_device(model, adapters)
    found: list[torch.Tensor] = []
    for number in range(1, 1 + len(adapters)):
        driver = Driver(model, max_tokens=32, adapters={"a": number}, checker=checker)
        found.append(driver.prefill({"a": PROMPTS[0][:1]}))
    names = {str(number): PROMPTS[-1] for number in range(1 + len(adapters))}
    driver = Driver(model, max_tokens=32, adapters={name: int(name) for name in names}, checker=checker)
    return [*found, driver.prefill(names, all_logits=True)]


@pytest.mark.parametrize("count", [2, 3], ids=["low rank alone", "with DoRA"])
def test_fused_operators(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an adapter multiplies outputs, steps without it are fused all the same."""
    base, adapters = write_base("llama", tmp_path / "base"), [tmp_path / str(number) for number in range(count)]
    for folder, options in zip(adapters, ADAPTERS, strict=False):
        write_adapter(AdapterCase("llama", options), folder)
    expected = logits(base, adapters)
    called = fuse(monkeypatch)
    for found, wanted in zip(logits(base, adapters), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-5)
    layers = 2
    assert called.count("adapted_gemv") == 2 * 4 * layers
    assert called.count("lora_delta") == (0 if count == 3 else 4 * layers)
    assert called.count("linear_split_k") == (0 if count == 3 else 3 * layers)
    assert called.count("adapted_linear") == (0 if count == 3 else layers)


def test_steps_are_counted_from_one_again() -> None:
    words = torch.ones(3, dtype=torch.int64)
    checker = AdapterChecker(1)
    checker.residents = {1: Resident(0, 1, by_output=False, ready=True)}
    tables = AdapterTables(checker, 1, False, words)
    tables._step = kernels.LAST_TURN - 1
    numbers = torch.ones(2, dtype=torch.int64).numpy()
    assert tables.of(numbers).counts.tolist() == [kernels.LAST_TURN, 1, 1]
    assert words.tolist() == [1, 1, 1]
    assert tables.of(numbers).counts.tolist() == [1, 1, 1]
    assert words.tolist() == [0, 0, 0]

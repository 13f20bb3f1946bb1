"""Every family on a GPU, in float32: kernels and graphs choose the ids that transformers chooses on a CPU.

`--junitxml` keeps what was found, for the tables of `docs/models.md` (`support/model_table.py`).
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
import triton
from support.comparing import assert_generations_are_equal
from support.fallback_cases import FALLBACK_CASES, FORCED
from support.families import Case, made, model_of, write
from support.family_cases import CASES
from support.generating import LIMITS, generations, warm_engine
from support.gpu_engine import build
from support.loading import load
from transformers import PreTrainedModel

from text_generation_server.config.implementation import ModelImpl

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session", autouse=True)
def _what_computes(record_testsuite_property: Callable[[str, object], None]) -> None:
    record_testsuite_property("device", torch.cuda.get_device_name())
    for library in (torch, triton, transformers):
        record_testsuite_property(library.__name__, library.__version__)


def assert_equal(case: Case, reference: PreTrainedModel, impl: ModelImpl, folder: Path) -> None:
    write(case, reference, folder)
    assert_generations_are_equal(case, reference, build(folder, torch.float32, LIMITS, impl))


@pytest.mark.parametrize("name", list(CASES))
def test_our_decoder(name: str, tmp_path: Path) -> None:
    assert_equal(CASES[name], model_of(name), "native", tmp_path)


@pytest.mark.parametrize("name", [*FALLBACK_CASES, *FORCED])
def test_classes_of_transformers(name: str, tmp_path: Path) -> None:
    assert_equal({**CASES, **FALLBACK_CASES}[name], model_of(name), "transformers", tmp_path)


@pytest.mark.parametrize("name", ["apertus", "helium", "persimmon"])
def test_classes_of_transformers_with_keys_and_values_of_8_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against torch on a CPU, which is compared with the class. A number may be rounded the other way."""
    write(FALLBACK_CASES[name], model_of(name), tmp_path)
    engines = (
        build(tmp_path, torch.float32, LIMITS, "transformers", kv_cache="int8"),
        warm_engine(load(tmp_path, impl="transformers", kv_cache="int8"), monkeypatch),
    )
    computed, expected = (generations(engine, 0, 1, 2, 3, 4, chunk=3, pause=0.1) for engine in engines)
    for ours, theirs in zip(computed, expected, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-2)


@pytest.mark.parametrize("head_dim", [80, 96, 192, 256, 512])
def test_sizes_of_heads(head_dim: int, tmp_path: Path) -> None:
    case = Case("Llama", "llama", {"head_dim": head_dim, "num_hidden_layers": 1})
    assert_equal(case, made(case), "native", tmp_path)

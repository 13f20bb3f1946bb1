"""Windows beside prompts and adapters, and whole models that draft, on a GPU: they change no token, with CUDA graphs
and without, and nothing compiles for them after warm-up.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.checkpoints import tiny_llama
from support.eagle import write_head
from support.gpu_engine import OF_WINDOWS as LIMITS
from support.gpu_engine import SETTINGS, build
from support.same_text import DRAFTERS, rounds
from support.windows import NEW_TOKENS, Reader, request, run, run_arriving

from text_generation_server.engine.requests import Request

pytestmark = pytest.mark.gpu

GRAPHS = pytest.mark.parametrize("graphs", [None, ()], ids=["graphs", "no graphs"])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, num_hidden_layers=4)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory, target: Path) -> dict[str, Path | None]:
    smaller = tiny_llama(tmp_path_factory, num_hidden_layers=1, num_key_value_heads=1)
    head = write_head(tmp_path_factory.mktemp("head"), target, (1, 2, 4))
    return {"ngram": None, "eagle3": head, "draft_model": smaller}


def asked(count: int, vocab_size: int = 370, longest: int = 150, adapters: int = 0) -> list[Request]:
    lengths = [(37 * row) % longest + 1 for row in range(count)]
    texts = [[(row + 31 * place) % vocab_size + 5 for place in range(length)] for row, length in enumerate(lengths)]
    made = [request(row, text, room=256, **SETTINGS[row % len(SETTINGS)]) for row, text in enumerate(texts)]
    return [replace(each, adapter=each.row % (adapters + 1)) for each in made]


@GRAPHS
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["ngram", "eagle3", "draft_model"])
def test_text_is_that_of_single_tokens(
    target: Path, drafters: dict[str, Path | None], name: str, deterministic: bool, graphs: tuple[int, ...] | None
) -> None:
    """In float32 nothing hangs on the last bits of this model."""
    dtype = torch.bfloat16 if deterministic else torch.float32
    how = {"deterministic": deterministic, "cuda_graphs": graphs}
    plain = build(target, dtype, LIMITS, **how)
    expected = run(plain, asked(16), 1)
    del plain
    engine = build(target, dtype, LIMITS, drafter=drafters[name], speculate=7, **how)
    for width in (1, 2, 4, 8):
        for chunk in (5, 64):
            found: Reader = run_arriving(engine, asked(16), width, chunk, together=3)
            assert found.ids == expected.ids, (width, chunk)
            assert not deterministic or found.logprobs == expected.logprobs, (width, chunk)
            assert found.compilations == 0
        found = run(engine, asked(16), width)
        assert found.ids == expected.ids, width
        assert found.compilations == 0


@GRAPHS
def test_drafts_of_the_model_itself_are_right(target: Path, graphs: tuple[int, ...] | None) -> None:
    """All but those that hang on last bits."""
    engine = build(target, torch.float32, LIMITS, drafter=target, kind="draft_model", speculate=3, cuda_graphs=graphs)
    requests = [request(row, each.input_ids.tolist(), room=256) for row, each in enumerate(asked(5))]
    found = run(engine, requests, 4)
    assert found.steps <= 3 + -(-(NEW_TOKENS - 3) // 4)
    assert found.ids == run(engine, requests, 1).ids


@GRAPHS
@pytest.mark.parametrize("name", ["llama", "biased"])
def test_windows_with_adapters(tmp_path: Path, name: str, graphs: tuple[int, ...] | None) -> None:
    adapters = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(adapters):
        modules = [["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"]][number]
        write_adapter(AdapterCase(name, {"target_modules": modules}), folder)
    base, requests = write_base(name, tmp_path / "base"), asked(16, 80, 40, adapters=2)
    how: dict[str, Any] = {"deterministic": True, "cuda_graphs": graphs, "adapters": adapters}
    plain = build(base, torch.bfloat16, LIMITS, **how)
    expected = run(plain, requests, 1, adapters)
    del plain
    engine = build(base, torch.bfloat16, LIMITS, speculate=7, **how)
    for width in (1, 2, 4, 8):
        for found in (
            run_arriving(engine, requests, width, 16, adapters, together=3),
            run(engine, requests, width, adapters),
        ):
            assert (found.ids, found.logprobs) == (expected.ids, expected.logprobs), width
            assert found.compilations == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_with_twenty_settings(drafter: str) -> None:
    assert not any(each.different for each in rounds(200, [drafter], cuda=True))

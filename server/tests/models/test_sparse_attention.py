"""Models whose tokens attend to the positions that an indexer chooses: what hides from short prompts of one request."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.comparing import checkpoints
from support.driver import Driver
from support.engine_driver import directly, make_engine, stream
from support.families import logits_of, model_of
from support.family_cases import CASES
from support.loading import load
from support.router import Router
from support.windows import hinting, request, run
from torch import Tensor

from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import ServingLimits, WarmupLimits
from text_generation_server.layers.infer import expanded, sparse_step

PREFIXED = ["deepseek v3.2", "deepseek v4", "deepseek v4 other", "glm 5", "glm 5.2", "minimax m3"]
NAMES = [*PREFIXED, "glm 5.3", "glm 5.3 other"]
"""The last ones have recurrent layers, which cannot begin behind a prefix of another request."""
PROMPT = [(17 * i + 3) % 90 + 4 for i in range(24)]
"""Five positions are chosen, two blocks of four, or one or two pools of three or two."""
LIMITS = WarmupLimits(max_batch_prefill_tokens=64, max_batch_size=8, max_batch_total_tokens=512, max_total_tokens=64)
SERVING = ServingLimits(512, 63, 64, 8)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints(tmp_path_factory.mktemp("sparse"), CASES)(name)


@pytest.fixture(scope="module")
def expected(name: str) -> Tensor:
    return logits_of(CASES[name], model_of(name), PROMPT)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


def test_a_prompt_may_be_cut_anywhere(folder: Path, expected: Tensor) -> None:
    """Also where the first chunk is one of a short request, and the second one of a long one."""
    driver = Driver(load(folder), max_tokens=32, num_rows=len(PROMPT))
    for cut in range(1, len(PROMPT)):
        driver.register(str(cut), PROMPT)
        close(driver.extend(str(cut), cut)[0], expected[cut - 1])
        close(driver.extend(str(cut), len(PROMPT) - cut)[0], expected[-1])


def test_short_and_long_chunks_stand_side_by_side(folder: Path, expected: Tensor) -> None:
    """Of the short ones contexts are whole, and of some of them expanded."""
    driver = Driver(load(folder), max_tokens=32)
    prompts = {"one": PROMPT[:1], "long": PROMPT, "short": PROMPT[:5], "longer": PROMPT[:6]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expanded, "LEAST_TOKENS", 2)
        patch.setattr(expanded, "WORTH", 0.1)
        close(driver.prefill(prompts), expected[[len(prompt) - 1 for prompt in prompts.values()]])
        logits = driver.prefill({"again": PROMPT}, all_logits=True)
    close(logits, expected)


@pytest.mark.parametrize(("scores", "tokens"), [(1, 256), (1 << 25, 3), (64 * 5, 8)])
def test_steps_may_be_computed_in_parts(folder: Path, expected: Tensor, scores: int, tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_step, "_SCORES", scores)
        patch.setattr(sparse_step, "_CONTEXTS", tokens)
        close(Driver(load(folder), max_tokens=32).prefill({"whole": PROMPT}, all_logits=True), expected)


def engine_of(folder: Path, **options: Any) -> Engine:
    return make_engine(load(folder), LIMITS, options=EngineOptions(**options))


@pytest.mark.parametrize("name", PREFIXED, scope="module")
def test_prefixes_of_other_requests_may_be_read(name: str, folder: Path) -> None:
    """At every length: index keys lie in the slots of the prefix."""
    router = Router(directly(engine_of(folder)), SERVING, chunk=7, depth=2)
    first = stream(0, PROMPT, 20)
    router.start(first)
    while len(first.tokens) < 2:
        router.step()
    others = [stream(cached, PROMPT, 4) for cached in (1, 4, 5, 6, 15, 23)]
    for other in others:
        router.start(other, prefix_of=first, cached=other.id)
    router.run()
    for each in (first, *others):
        ids = logits_of(CASES[name], model_of(name), each.ids)[:-1].argmax(-1).tolist()
        assert each.tokens == ids[len(PROMPT) - 1 :]


def test_windows_of_drafts_change_no_token(folder: Path) -> None:
    """Nor its probability. Drafts are of prompts that repeat themselves, and of hints with every third token wrong."""
    prompts = [[5, 6, 7] * 6, [60] * 9, PROMPT]
    asked = [request(row, prompt, room=40) for row, prompt in enumerate(prompts)]
    plain = run(engine_of(folder), asked, 1)
    for deterministic in (False, True):
        engine = engine_of(folder, speculate=3, deterministic=deterministic)
        windows = run(engine, asked, 4, hinter=hinting(plain, asked, 3))
        assert windows.ids == plain.ids
        assert windows.steps < plain.steps
        for row, logprobs in plain.logprobs.items():
            assert windows.logprobs[row] == pytest.approx(logprobs, abs=1e-3)


def test_deterministic_bits_do_not_depend_on_where_a_prompt_is_cut(folder: Path) -> None:
    engine = engine_of(folder, deterministic=True)
    found: list[tuple[list[int], list[float]]] = []
    for chunk in (2, 5, 6, 11, 64):
        engine.clear_cache(None)
        each, beside = stream(0, PROMPT, 6), stream(1, PROMPT[:9], 6)
        recurrent = engine.info.recurrent
        Router(directly(engine), SERVING, chunk=chunk, depth=2, pause=0.1, recurrent=recurrent).run(each, beside)
        found.append((each.tokens, each.logprobs))
    assert len(found[0][0]) == 6
    assert all(each == found[0] for each in found)

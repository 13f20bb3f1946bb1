"""Windows of drafted tokens beside prompts, in one step: the text is the text without them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapters import AdapterCase, write_adapter, write_base
from support.checkpoints import tiny_llama
from support.eagle import write_head
from support.engine_driver import LIMITS, engine_with, make_engine
from support.loading import load
from support.masked_windows import Guess, nothing
from support.masked_windows import run as run_masked
from support.replayed import capture, replays
from support.windows import PROMPTS, SETTINGS, Hinter, Reader, request, run, run_arriving

from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Hint, Request, StepPlan
from text_generation_server.engine.widths import WidthChecker, window_widths
from text_generation_server.errors import InvalidRequest


def asked(adapters: int = 0) -> list[Request]:
    of_row = [request(row, PROMPTS[row % len(PROMPTS)], **settings) for row, settings in enumerate(SETTINGS)]
    return [replace(each, adapter=each.row % (adapters + 1)) for each in of_row]


def right_of(expected: Reader, requests: Sequence[Request]) -> Hinter:
    """Hints that are all right."""

    def hints(row: int, ids: Sequence[int]) -> list[Hint]:
        at = len(requests[row].input_ids) + len(ids)
        return [Hint(row, at, np.array(expected.ids[row][len(ids) :], dtype=np.int64))]

    return hints


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("width", [2, 4])
def test_text_is_that_without_windows(width: int, chunk: int, deterministic: bool) -> None:
    options = EngineOptions(deterministic=deterministic)
    expected = run(make_engine(options=options, eos_token_ids=[2]), asked(), 1)
    engine = make_engine(options=replace(options, speculate=3), eos_token_ids=[2])
    for hinter in (lambda row, ids: [], right_of(expected, asked())):
        found = run_arriving(engine, asked(), width, chunk, hinter=hinter)
        assert (found.ids, found.tops) == (expected.ids, expected.tops)
        for row, logprobs in expected.logprobs.items():
            assert found.logprobs[row] == (logprobs if deterministic else pytest.approx(logprobs, abs=1e-5))


def test_windows_are_accepted_in_the_step_of_a_prompt() -> None:
    first, second = request(0, PROMPTS[0]), request(1, PROMPTS[2])
    expected = run(make_engine(), [first, second], 1)
    engine = make_engine(options=EngineOptions(speculate=3))
    engine.clear_cache(None)
    found = Reader()
    found.read(engine.step(StepPlan(0, admit=[first], chunks=[Chunk(0, 0, 5)])).result())
    [hint] = right_of(expected, [first])(0, found.ids[0])
    plan = StepPlan(1, admit=[second], chunks=[Chunk(1, 0, 8)], decode=[0], widths=[4], hints=[hint])
    reply = engine.step(plan).result()
    found.read(reply)
    assert (reply.rows, reply.counts, reply.hinted) == ([0, 1], [4, 1], [0])
    assert found.ids == {0: expected.ids[0][:5], 1: expected.ids[1][:1]}


def test_log_probabilities_of_prompts_beside_windows() -> None:
    first, second = request(0, PROMPTS[0]), replace(request(1, PROMPTS[2]), prefill_logprobs=True)
    plain, engine = make_engine(), make_engine(options=EngineOptions(speculate=3))
    scores = []
    for each, widths in ((plain, []), (engine, [4])):
        each.clear_cache(None)
        each.step(StepPlan(0, admit=[first], chunks=[Chunk(0, 0, 5)])).result()
        plan = StepPlan(1, admit=[second], chunks=[Chunk(1, 0, 8)], decode=[0], widths=widths)
        scores.append(each.step(plan).result().prompt_scores)
    (expected,), (found,) = scores
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, num_hidden_layers=4)


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
@pytest.mark.parametrize("chunk", [2, 8])
def test_drafters_go_on_beside_prompts(target: Path, tmp_path: Path, kind: Any, chunk: int) -> None:
    expected = run(make_engine(load(target)), asked(), 1)
    drafter = target if kind == "draft_model" else write_head(tmp_path, target, (1, 2, 4))
    engine = make_engine(load(target, drafter=drafter, kind=kind), options=EngineOptions(speculate=3))
    found = run_arriving(engine, asked(), 4, chunk)
    assert found.ids == expected.ids


def test_all_drafts_of_the_model_itself_are_right_beside_prompts(target: Path) -> None:
    requests = [request(row, prompt, do_sample=True, seed=row) for row, prompt in enumerate(PROMPTS)]
    engine = make_engine(load(target, drafter=target, kind="draft_model"), options=EngineOptions(speculate=3))
    engine.clear_cache(None)
    plan = StepPlan(0, admit=requests[:1], chunks=[Chunk(0, 0, 5)])
    found = Reader()
    found.read(engine.step(plan).result())
    counts = []
    for number, each in enumerate(requests[1:], 1):
        chunks = [Chunk(each.row, 0, len(each.input_ids))]
        reply = engine.step(StepPlan(number, admit=[each], chunks=chunks, decode=[0], widths=[4])).result()
        found.read(reply)
        counts.append(reply.counts[0])
    # The first step drafts one token, as its rows have one each.
    assert counts == [2, 4, 4]
    assert found.ids[0] == run(make_engine(load(target)), requests[:1], 1).ids[0][:11]


@pytest.mark.parametrize("of_head", [False, True], ids=["layers", "embedding and head"])
@pytest.mark.parametrize("has_graphs", [False, True], ids=["no graphs", "graphs"])
def test_windows_with_adapters_beside_prompts(tmp_path: Path, has_graphs: bool, of_head: bool) -> None:
    case = AdapterCase("biased", {"target_modules": ["embed_tokens", "lm_head"]} if of_head else {})
    adapters = [tmp_path / "adapter"]
    write_adapter(case, adapters[0])
    base, requests = write_base("biased", tmp_path / "base"), asked(adapters=1)
    expected = run(engine_with(load(base), LIMITS, adapters, eos_token_ids=[2]), requests, 1, adapters)
    engine = engine_with(load(base), LIMITS, adapters, options=EngineOptions(speculate=3), eos_token_ids=[2])
    if has_graphs:
        by_width = {width: [8, 32] for width in (2, 4)}
        kinds = [2, 8], [2, 8], [16, 64]
        windows = {"windows": by_width, "forward_windows": by_width, "window_tokens": by_width}
        capture(
            engine, GraphSizes(*kinds, *kinds, **windows, **{f"adapted_{key}": each for key, each in windows.items()})
        )
    for width in (2, 4):
        for hinter in (lambda row, ids: [], right_of(expected, requests)):
            assert run_arriving(engine, requests, width, 3, adapters, hinter).ids == expected.ids
            assert run(engine, requests, width, adapters, hinter).ids == expected.ids
    if has_graphs:
        assert engine._runner is not None
        captured = engine._runner._captured
        assert all(replays(captured.adapted, 4)[place] for place in (0, 2)), "both kinds of steps are replayed"


def test_graphs_of_windows_beside_prompts(target: Path) -> None:
    expected = run(make_engine(load(target)), asked(), 1)
    engine = make_engine(load(target), options=EngineOptions(speculate=3))
    capture(engine, GraphSizes([2, 8], [2, 8], [16, 64], window_tokens={2: [16], 4: [8, 32]}))
    assert engine._runner is not None
    for width in (2, 4):
        for hinter in (lambda row, ids: [], right_of(expected, asked())):
            found = run_arriving(engine, asked(), width, 2, hinter=hinter)
            assert (found.ids, found.tops) == (expected.ids, expected.tops)
        assert replays(engine._runner._captured.base, width)[2]


def test_masks_of_windows_beside_prompts() -> None:
    expected = run_masked(make_engine(), 1)
    engine = make_engine(options=EngineOptions(speculate=3))

    def right(row: int, ids: Sequence[int]) -> Sequence[int]:
        return expected.ids[row][len(ids) :]

    guesses: list[Guess] = [right, nothing, lambda row, ids: [*right(row, ids)[:1], 1, 2, 3]]
    for width in (2, 4):
        for guess in guesses:
            assert run_masked(engine, width, guess, beside_prompts=True).ids == expected.ids


def test_plans_with_too_many_tokens_of_windows() -> None:
    chunks = [Chunk(row, 0, 1) for row in range(1, 33)]
    plan = StepPlan(0, chunks=chunks[:-1], decode=[0], widths=[16])
    assert WidthChecker(window_widths(15)).of(plan) is not None
    with pytest.raises(InvalidRequest, match="name 33 rows of up to 16 tokens; a step with `widths` computes at most"):
        WidthChecker(window_widths(15)).of(replace(plan, chunks=chunks))


def test_a_server_without_drafts_gets_no_windows() -> None:
    engine = make_engine()
    engine.step(StepPlan(0, admit=[request(0, [1, 2])], chunks=[Chunk(0, 0, 2)])).result()
    plan = StepPlan(1, admit=[request(1, [1, 2])], chunks=[Chunk(1, 0, 2)], decode=[0], widths=[2])
    with pytest.raises(InvalidRequest, match="from 1 to 1 on this shard"):
        engine.step(plan)

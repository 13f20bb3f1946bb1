"""Windows of drafted tokens in models with recurrent layers: a rejected draft leaves no trace in a state."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.adapted import linears_of, write_factors
from support.checkpoints import tiny_llama
from support.eagle import write_head
from support.engine_driver import LIMITS, engine_with, make_engine
from support.families import model_of, write
from support.family_cases import CASES
from support.loading import load
from support.masked_windows import Guess, nothing
from support.masked_windows import run as run_masked
from support.replayed import capture, replays
from support.thread_ranks import ThreadGroup, thread_groups, together
from support.windows import NEW_TOKENS, PROMPTS, SETTINGS, Reader, hinting, request, run, run_arriving

import text_generation_kernels as kernels
from text_generation_kernels import Runs
from text_generation_server.config.asked_drafter import DrafterKind
from text_generation_server.engine import warmup
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.graphs import GraphSizes
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Hint, Request, StepCost, StepPlan
from text_generation_server.layers.infer import LayerState, StateWindows, accepted_runs

KINDS = [
    "qwen3.5",
    "mamba",
    "mamba 2",
    "falcon h1",
    "glm 5.3",
    "kimi linear",
    "ling 2.5",
    "minimax 01",
    "lfm2",
    "recurrent gemma",
]
"""Every kind of recurrent layer, with gates, norms and rotations that some have."""


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "measured_cost", lambda *_: StepCost())


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("models")

    @cache
    def written(name: str) -> Path:
        write(CASES[name], model_of(name), root / name)
        return root / name

    return written


def asked() -> list[Request]:
    return [request(row, PROMPTS[row % len(PROMPTS)], **settings) for row, settings in enumerate(SETTINGS)]


RIGHT = 1 << 30
"""No token of hints is spoilt."""


@pytest.mark.parametrize("name", KINDS)
def test_deterministic_windows_have_the_bits_of_single_tokens(name: str, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(name)
    options = EngineOptions(deterministic=True)
    expected = run(make_engine(load(folder), options=options), asked(), 1)
    engine = make_engine(load(folder), options=replace(options, speculate=7))
    found = (
        run(engine, asked(), (8, 1, 2, 4, 1, 1), hinter=hinting(expected, asked(), 3)),
        run(engine, asked(), 4, hinter=hinting(expected, asked(), RIGHT)),
        run_arriving(engine, asked(), 4, 3, hinter=hinting(expected, asked(), 4)),
    )
    for each in found:
        assert (each.ids, each.tops, each.logprobs) == (expected.ids, expected.tops, expected.logprobs)
    assert found[1].steps == 1 + -(-(NEW_TOKENS - 1) // 4), "right drafts are all accepted"


@pytest.mark.parametrize("spoilt", [1, 2, 5, RIGHT])
def test_windows_of_any_width_change_no_token(spoilt: int, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("qwen3.5")
    expected = run(make_engine(load(folder)), asked(), 1)
    engine = make_engine(load(folder), options=EngineOptions(speculate=7))
    hinter = hinting(expected, asked(), spoilt)
    for width in (1, 2, 4, 8):
        for found in (run(engine, asked(), width, hinter=hinter), run_arriving(engine, asked(), width, 2)):
            assert (found.ids, found.tops) == (expected.ids, expected.tops)
            for row, logprobs in expected.logprobs.items():
                assert found.logprobs[row] == pytest.approx(logprobs, abs=1e-4)


def test_a_row_that_pauses_or_is_used_again(folder_of: Callable[[str], Path]) -> None:
    """A pause drops the row in the middle of its windows; another request has it meanwhile."""
    folder = folder_of("qwen3.5")
    first, second = (replace(request(0, PROMPTS[place], **SETTINGS[place]), id=place) for place in (1, 2))
    plain = make_engine(load(folder))
    expected = [run(plain, [each], 1).ids[0] for each in (first, second)]
    engine = make_engine(load(folder), options=EngineOptions(speculate=3))
    engine.clear_cache(None)

    def starts(number: int, each: Request, generated: Sequence[int] = ()) -> StepPlan:
        ids = np.array([*each.input_ids, *generated])
        again = replace(each, input_ids=ids, num_generated=len(generated))
        drop = [0] if number else []
        return StepPlan(number, drop=drop, admit=[again], chunks=[Chunk(0, 0, len(ids))])

    def goes_on(number: int, width: int, ids: Sequence[int]) -> StepPlan:
        hints = [Hint(0, 0, np.array(ids))]
        return StepPlan(number, decode=[0], widths=[width], hints=hints)

    texts = [[*each.input_ids.tolist(), *ids] for each, ids in zip((first, second), expected, strict=True)]
    spoilt = [*texts[0][:-4], *[7] * 4]
    found = [Reader() for _ in range(3)]
    for place, plan in (
        (0, starts(0, first)),
        (0, goes_on(1, 4, spoilt)),
        (1, starts(2, second)),
        (1, goes_on(3, 4, texts[1])),
        (1, goes_on(4, 2, texts[1])),
    ):
        found[place].read(engine.step(plan).result())
    assert (found[0].ids[0], found[1].ids[0]) == (expected[0][:5], expected[1][:7])
    found[2].read(engine.step(starts(5, first, found[0].ids[0])).result())
    number = 5
    while len(found[0].ids[0] + found[2].ids[0]) < NEW_TOKENS:
        number += 1
        found[2].read(engine.step(goes_on(number, 4, texts[0])).result())
    assert found[0].ids[0] + found[2].ids[0] == expected[0]


def test_graphs(folder_of: Callable[[str], Path]) -> None:
    """Whole steps, forward passes under masks, and steps with prompts, with windows of rows that pad them."""
    folder = folder_of("qwen3.5")
    plain, engine = make_engine(load(folder)), make_engine(load(folder), options=EngineOptions(speculate=3))
    by_width = {width: [8] for width in (2, 4)}
    windows = {"windows": by_width, "forward_windows": by_width, "window_tokens": {2: [16], 4: [32]}}
    capture(engine, GraphSizes([2, 8], [2, 8], [16, 64], **windows))
    expected, masked = run(plain, asked(), 1), run_masked(plain, 1)

    def right(row: int, ids: Sequence[int]) -> Sequence[int]:
        return masked.ids[row][len(ids) :]

    guesses: list[Guess] = [nothing, lambda row, ids: [*right(row, ids)[:1], 1, 2, 3]]
    assert engine._runner is not None
    for width in (2, 4):
        hinter = hinting(expected, asked(), 3)
        assert run(engine, asked(), (width, 1), hinter=hinter).ids == expected.ids
        assert run_arriving(engine, asked(), width, 2, hinter=hinter).ids == expected.ids
        for guess in guesses:
            for beside_prompts in (False, True):
                assert run_masked(engine, width, guess, beside_prompts).ids == masked.ids
        assert all(replays(engine._runner._captured.base, width)), "all kinds of steps are replayed"
        assert set(engine._runner._steps.states.graphs[width].replays) == {8}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["mamba", "kimi linear", "recurrent gemma"])
def test_adapters_of_what_the_recurrence_reads(name: str, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder, adapters = folder_of(name), [tmp_path / "adapter"]
    linears = [each for each in linears_of(load(folder)) if each.site is not None]
    # Requests cannot have routers of experts for themselves.
    write_factors(adapters[0], [each for each in linears if not each.site.modules[0].endswith("gate")])
    requests = [replace(each, adapter=each.row % 2) for each in asked()]
    expected = run(engine_with(load(folder), LIMITS, adapters), requests, 1, adapters)
    assert expected.ids != run(make_engine(load(folder)), asked(), 1).ids
    engine = engine_with(load(folder), LIMITS, adapters, options=EngineOptions(speculate=3))
    assert run(engine, requests, (4, 1, 2), adapters, hinting(expected, requests, 3)).ids == expected.ids


@pytest.mark.parametrize("kind", ["eagle3", "draft_model"])
def test_drafters(
    kind: DrafterKind, folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """They read hidden states or tokens, beside prompts and without."""
    folder = folder_of("qwen3.5")
    if kind == "eagle3":
        drafter = write_head(tmp_path, folder, (1, 2), drafted=99)
    else:
        drafter = tiny_llama(tmp_path_factory, vocab_size=99)
    expected = run(make_engine(load(folder)), asked(), 1)
    engine = make_engine(load(folder, drafter=drafter, kind=kind), options=EngineOptions(speculate=3))
    for found in (run(engine, asked(), (4, 1, 2)), run_arriving(engine, asked(), 4, 2)):
        assert found.ids == expected.ids


@pytest.mark.parametrize("name", ["qwen3.5", "mamba", "mamba 2 of one group"])
def test_ranks(name: str, folder_of: Callable[[str], Path]) -> None:
    """Two ranks, which add up what some layers read between convolution and recurrence."""
    folder = folder_of(name)
    expected = run(make_engine(load(folder)), asked(), 1)
    engines = Ranks(folder)
    hinter = hinting(expected, asked(), 3)
    assert run(engines, asked(), (4, 1, 2), hinter=hinter).ids == expected.ids  # type: ignore[arg-type]
    assert run_arriving(engines, asked(), 4, 2, hinter=hinter).ids == expected.ids  # type: ignore[arg-type]


class Ranks:
    """The engines of two ranks, which get each plan at the same time."""

    def __init__(self, folder: Path) -> None:
        def warm(group: ThreadGroup) -> Engine:
            return make_engine(load(folder, group=group), group=group, options=EngineOptions(speculate=3))

        self._engines = together([partial(warm, group) for group in thread_groups(2)])

    def clear_cache(self, instance: None) -> None:
        for each in self._engines:
            each.clear_cache(instance)

    def step(self, plan: StepPlan) -> SimpleNamespace:
        replies = together([lambda engine=each: engine.step(plan).result() for each in self._engines])
        assert replies[0].ids == replies[1].ids
        return SimpleNamespace(result=lambda: replies[0])


@pytest.mark.parametrize("speculate", [0, 3])
def test_single_tokens_advance_the_states_themselves(
    speculate: int, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without windows each layer calls the operators once, over the states; nothing is copied, kept or replayed."""
    engine = make_engine(load(folder_of("qwen3.5")), options=EngineOptions(speculate=speculate))
    assert engine._runner is not None
    pool = engine._runner._steps.states._pool
    assert bool(sum(len(part) for layer in pool.read for part in layer)) is bool(speculate)
    called: list[tuple[str, int]] = []

    def fails(*_: object) -> None:
        raise AssertionError("a state was copied")

    def noted(name: str, place: int) -> Callable[..., None]:
        operator = getattr(kernels, name)

        def call(*operands: Any) -> None:
            called.append((name, operands[place].data_ptr()))
            operator(*operands)

        return call

    monkeypatch.setattr(LayerState, "of", fails)
    monkeypatch.setattr(StateWindows, "keep", fails)
    for name, place in (("causal_conv", 3), ("gated_delta", 4)):
        monkeypatch.setattr(kernels, name, noted(name, place))
    steps = run(engine, asked(), 1).steps
    of_step = [
        each
        for layer in pool.states
        for each in (("causal_conv", layer.inputs.data_ptr()), ("gated_delta", layer.state.data_ptr()))
    ]
    assert called == of_step * steps


def test_accepted_tokens_are_runs_over_the_states() -> None:
    rows, counts, lengths = (torch.tensor(each) for each in ([7, 3, 9], [2, 0, 4], [12, 5, 0]))
    runs = accepted_runs(rows, counts, lengths, 4)
    assert isinstance(runs, Runs)
    assert runs.starts is not None
    assert runs.rows.tolist() == [7, 7, 3, 3, 9, 9]
    # Those that were rejected, and what pads a step, are runs of requests of length 0.
    assert runs.starts.tolist() == [0, 2, 4, 4, 8, 12, 12]
    assert runs.kv_lens.tolist() == [11, 0, 4, 0, 0, 0]

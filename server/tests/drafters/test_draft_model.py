"""A whole model of the same vocabulary drafts what Transformers says that it would say, and changes no text."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import tiny_llama
from support.engine_driver import LIMITS, make_engine
from support.loading import load
from support.thread_ranks import ThreadGroup, thread_groups, together
from support.windows import NEW_TOKENS, Reader, request, run
from torch import Tensor
from transformers import LlamaForCausalLM

from text_generation_server.drafters import DraftModel, DraftStep
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import (
    Chunk,
    Grant,
    NextTokenChooserParameters,
    Request,
    SlotRange,
    StepPlan,
)

PROMPTS = [[5, 6, 7, 5, 6], [1, 2, 3], [9, 8, 7, 6, 9, 8, 7, 6], [11]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7},
    {"do_sample": True, "seed": 11, "top_p": 0.9, "top_k": 20},
]
SAMPLED = {"do_sample": True, "seed": 5, "temperature": 0.8}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory)


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, num_hidden_layers=1, hidden_size=32, num_key_value_heads=1)


def drafting(target: Path, drafter: Path, **options: Any) -> Engine:
    model = load(target, drafter=drafter, kind="draft_model")
    return make_engine(model, LIMITS, options=EngineOptions(speculate=3, **options))


def asked() -> list[Request]:
    return [request(row, PROMPTS[row], **each) for row, each in enumerate(SETTINGS)]


class Seen:
    """Texts of rows, and what was drafted behind them."""

    def __init__(self) -> None:
        self.drafts: list[tuple[int, list[int], list[int]]] = []

    def from_now_on(self) -> None:
        """Forgets steps of warm-up."""
        self.drafts.clear()

    def of(self, rows: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        return [(text, ids) for row, text, ids in self.drafts if row in rows]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, original = Seen(), DraftModel.draft

    def draft(drafter: DraftModel, step: DraftStep) -> None:
        original(drafter, step)
        for row in step.chosen.tolist() if step.wanted else ():
            length, limit = int(step.sequences.length[row]), int(step.drafts.limits[row])
            count = min(int(step.drafts.counts[row]), limit - length)
            text, ids = step.drafts.tokens[row, :length].tolist(), step.drafts.ids[row, :count].tolist()
            found.drafts.append((row, text, ids))

    monkeypatch.setattr(DraftModel, "draft", draft)
    return found


def continued(folder: Path, text: Sequence[int], count: int) -> list[int]:
    """What a model says greedily, by Transformers."""
    model, ids = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), list(text)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(text) :]


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_text_and_drafts(target: Path, smaller: Path, seen: Seen, width: int, deterministic: bool) -> None:
    options = EngineOptions(deterministic=deterministic)
    expected = run(make_engine(load(target), LIMITS, options=options), asked(), 1)
    engine = drafting(target, smaller, deterministic=deterministic)
    seen.from_now_on()
    found = run(engine, asked(), width)
    assert found.ids == expected.ids
    assert not deterministic or found.logprobs == expected.logprobs
    # The others sample.
    drafts = seen.of([0, 2])
    assert max(len(ids) for _, ids in drafts) == min(width, 3)
    for text, ids in drafts:
        assert ids == continued(smaller, text, len(ids)), text


@pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_all_drafts_of_the_model_itself_are_right(target: Path, settings: dict[str, Any]) -> None:
    requests = [request(row, prompt, **settings) for row, prompt in enumerate(PROMPTS)]
    found = run(drafting(target, target), requests, 4)
    assert found.ids == run(make_engine(load(target), LIMITS), requests, 1).ids
    # The prompts' step drafts one token, and each other one three.
    assert found.steps == 2 + -(-(NEW_TOKENS - 3) // 4)


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_prompts_in_chunks_and_cached_prefixes(target: Path, smaller: Path, seen: Seen, cut: int) -> None:
    """The second request finds the first seven positions of the first one in the cache."""
    prompt, engine = [9, 8, 7, 6, 9, 8, 7, 6], drafting(target, smaller)
    first, second = request(0, prompt, 4), request(1, [*prompt[:7], 5, 4], 4)
    slots = (SlotRange(0, 7), SlotRange(40, 9))
    shared = Request(1, 1, second.input_ids, second.parameters, slots, cached_length=7, max_new_tokens=4)
    seen.from_now_on()
    found = Reader()
    chunks = [Chunk(0, at, min(cut, 8 - at)) for at in range(0, 8, cut)]
    for number, chunk in enumerate(chunks):
        plan = StepPlan(number, admit=[] if number else [first], chunks=[chunk])
        found.read(engine.step(plan).result())
    number = len(chunks)
    found.read(engine.step(StepPlan(number, decode=[0], admit=[shared], chunks=[Chunk(1, 7, 2)])).result())
    while rows := [row for row in (0, 1) if len(found.ids[row]) < 4]:
        number += 1
        found.read(engine.step(StepPlan(number, decode=rows, widths=[4] * len(rows))).result())
    plain = make_engine(load(target), LIMITS)
    assert found.ids == run(plain, [first, second], 1).ids
    for text, ids in seen.of([0, 1]):
        assert ids == continued(smaller, text, len(ids)), text


def test_slots_may_come_as_they_are_needed(target: Path, smaller: Path, seen: Seen) -> None:
    """The newest token has no slot at times, and what the drafter keeps of it moves to the one that comes."""
    engine = drafting(target, smaller)
    expected = run(make_engine(load(target), LIMITS), [request(0, PROMPTS[0])], 1).ids[0]
    parameters = NextTokenChooserParameters()
    short = Request(0, 0, np.array(PROMPTS[0]), parameters, (SlotRange(0, 5),), max_new_tokens=NEW_TOKENS)
    seen.from_now_on()
    found = Reader()
    found.read(engine.step(StepPlan(0, admit=[short], chunks=[Chunk(0, 0, 5)])).result())
    number, held = 0, 5
    while len(found.ids[0]) < NEW_TOKENS:
        number += 1
        needed = min(5 + len(found.ids[0]) + number % 3, 5 + NEW_TOKENS - 1)
        grants = [Grant(0, (SlotRange(100 + held, needed - held),))] if needed > held else []
        held = max(held, needed)
        found.read(engine.step(StepPlan(number, grants=grants, decode=[0], widths=[4])).result())
    assert found.ids[0] == expected
    assert any(ids for _, ids in seen.of([0]))
    for text, ids in seen.of([0]):
        assert ids == continued(smaller, text, len(ids)), text


def test_ranks_draft_alike(target: Path, smaller: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the whole drafter."""
    drafted: dict[DraftModel, list[Tensor]] = {}
    original = DraftModel.draft

    def draft(drafter: DraftModel, step: DraftStep) -> None:
        original(drafter, step)
        drafted.setdefault(drafter, []).append(step.drafts.ids[step.chosen, : step.width].clone())

    def build(group: ThreadGroup) -> Engine:
        model = load(target, group=group, drafter=smaller)
        engine = make_engine(model, None, group=group, options=EngineOptions(speculate=3))
        engine.warmup(LIMITS)
        return engine

    chunks = [Chunk(each.row, 0, len(each.input_ids)) for each in asked()]
    plans = StepPlan(0, admit=asked(), chunks=chunks), StepPlan(1, decode=[2, 0, 1, 3], widths=[4] * 4)
    for ranks in (1, 2):
        engines = together([partial(build, group) for group in thread_groups(ranks)])
        with monkeypatch.context() as patch:
            patch.setattr(DraftModel, "draft", draft)
            for plan in plans:
                together([lambda engine=engine, plan=plan: engine.step(plan).result() for engine in engines])
    alone, first, second = drafted.values()
    for each in zip(alone, first, second, strict=True):
        assert all(torch.equal(each[0], other) for other in each[1:])


def test_info_and_slots_know_of_it(target: Path, smaller: Path) -> None:
    engine = drafting(target, smaller)
    assert (engine.info.drafter, engine.info.widths) == ("draft_model", (2, 4))

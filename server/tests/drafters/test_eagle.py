"""EAGLE-3 heads draft what plain torch says, however a text was computed, and change none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapters import AdapterCase, write_adapter, write_base
from support.checkpoints import tiny_llama
from support.eagle import PlainHead, write_head
from support.engine_driver import LIMITS, directly, engine_with, make_engine, stream
from support.generating import SERVING
from support.loading import load
from support.masked_windows import FREE, Guess, nothing
from support.masked_windows import PROMPTS as MASKED
from support.masked_windows import run as run_masked
from support.router import Router
from support.windows import NEW_TOKENS, request, run

from text_generation_server.drafters import DraftStep
from text_generation_server.drafters.eagle import EagleDrafter
from text_generation_server.engine.engine import Engine
from text_generation_server.engine.options import EngineOptions
from text_generation_server.engine.requests import Chunk, Hint, Request, StepPlan

LAYERS = (0, 2, 4)
PROMPTS = [[5, 6, 7, 5, 6], [1, 2, 3], [9, 8, 7, 6, 9, 8, 7, 6], [60] * 7, [11]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "temperature": 0.7},
    {"do_sample": True, "seed": 11, "temperature": 1.5, "top_p": 0.9, "top_k": 20},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"do_sample": True, "seed": 3, "watermark": True, "frequency_penalty": 0.5},
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory, num_hidden_layers=4)


class Watcher:
    """Texts, and what was drafted behind them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []
        original = EagleDrafter.draft

        def draft(drafter: EagleDrafter, step: DraftStep) -> None:
            original(drafter, step)
            for row in step.chosen.tolist() if step.wanted else ():
                if length := int(step.sequences.length[row]):
                    # Behind a token that has no slot, nothing more is drafted.
                    room = max(1, int(step.drafts.limits[row]) - length)
                    ids = step.drafts.ids[row, : min(step.width, step.drafts.most, room)].tolist()
                    self.seen.append((step.drafts.tokens[row, :length].tolist(), ids))

        patch.setattr(EagleDrafter, "draft", draft)

    def check(self, plain: PlainHead) -> None:
        assert self.seen
        for text, ids in self.seen:
            assert ids == plain.drafts(text, len(ids)), text


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Watcher:
    return Watcher(monkeypatch)


def drafting(target: Path, head: Path, drafts: int = 3, **options: Any) -> Engine:
    return make_engine(load(target, drafter=head), options=EngineOptions(speculate=drafts, **options))


def asked(settings: Sequence[dict[str, Any]] = SETTINGS) -> list[Request]:
    return [request(row, PROMPTS[row], **each) for row, each in enumerate(settings)]


HEADS: dict[str, dict[str, Any]] = {
    "authors": {},
    "all ids": {"drafted": 384},
    "norm before residual": {"norm_before_residual": True},
    "speculators": {"container": "speculators"},
    "speculators, plain": {"container": "speculators", "norm_before_residual": False, "norm_before_fc": True},
    "speculators, norms": {"container": "speculators", "fc_norm": True, "norm_output": True},
    "Qwen 3": {"container": "speculators", "qk_norm": True},
    "biases": {"bias": True},
    "own embedding": {"own_embedding": True},
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_drafts_are_those_of_plain_torch(target: Path, tmp_path: Path, head: dict[str, Any], watcher: Watcher) -> None:
    folder = write_head(tmp_path, target, LAYERS, **head)
    engine = drafting(target, folder)
    watcher.seen.clear()
    run(engine, asked([{}] * 5), 4)
    assert engine.info.drafter == "eagle3"
    assert max(len(ids) for _, ids in watcher.seen) == 3
    watcher.check(PlainHead(folder, target, LAYERS))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_text_is_that_without_a_drafter(target: Path, tmp_path: Path, width: int, deterministic: bool) -> None:
    plain = make_engine(load(target), options=EngineOptions(deterministic=deterministic))
    expected = run(plain, asked(), 1)
    engine = drafting(target, write_head(tmp_path, target, LAYERS), deterministic=deterministic)
    found = run(engine, asked(), width)
    assert (found.ids, found.tops) == (expected.ids, expected.tops)
    for row, logprobs in expected.logprobs.items():
        assert found.logprobs[row] == (logprobs if deterministic else pytest.approx(logprobs, abs=1e-4))


@pytest.mark.parametrize(("chunk", "pause"), [(64, 0.0), (3, 0.0), (2, 0.2)])
def test_drafts_behind_chunks_pauses_and_prefixes(
    target: Path, tmp_path: Path, watcher: Watcher, chunk: int, pause: float
) -> None:
    """Slots come one by one, as they are needed; a paused request keeps some of its own."""
    folder = write_head(tmp_path, target, LAYERS)
    engine = drafting(target, folder)
    watcher.seen.clear()
    router = Router(directly(engine), SERVING, chunk=chunk, depth=2, pause=pause, vocab_size=384)
    streams = [stream(row, prompt, 8) for row, prompt in enumerate(PROMPTS)]
    # Its masks come between forward pass and choice.
    streams[3].allowed = lambda tokens: range(5 + len(tokens), 300)
    router.start(*streams)
    while streams[2].planned < len(PROMPTS[2]):
        router.step()
    behind = stream(9, [*PROMPTS[2], 17, 18], 6)
    router.start(behind, prefix_of=streams[2], cached=len(PROMPTS[2]))
    router.run()
    assert any(text[: len(behind.prompt)] == behind.prompt for text, _ in watcher.seen)
    watcher.check(PlainHead(folder, target, LAYERS))


def test_few_steps_of_single_tokens_have_drafts_behind_them(target: Path, tmp_path: Path, watcher: Watcher) -> None:
    """Those say whether drafts are worth a window again, and what they read is there."""
    folder = write_head(tmp_path, target, LAYERS)
    engine = drafting(target, folder)
    watcher.seen.clear()
    asked_for = request(0, PROMPTS[0], 20)
    plans = [StepPlan(0, admit=[asked_for], chunks=[Chunk(0, 0, len(PROMPTS[0]))])]
    plans += [StepPlan(number, decode=[0], widths=[1]) for number in range(1, 12)]
    plans += [StepPlan(12, decode=[0], widths=[4]), StepPlan(13, decode=[0], widths=[4])]
    replies = [engine.step(plan).result() for plan in plans]
    # Step 8 has some, as steps with prompts and with windows have.
    assert [reply.number for reply in replies[1:] if not reply.undrafted] == [1, 9, 13]
    assert [reply.drafts[0] for reply in replies[-2:]] == [0, 3]
    prompt = len(PROMPTS[0])
    assert [len(text) - prompt for text, _ in watcher.seen][:3] == [1, 9, 13]
    watcher.check(PlainHead(folder, target, LAYERS))


LIARS: dict[str, Callable[[list[int], list[int]], list[int]]] = {
    "right": lambda text, ids: ids,
    "wrong": lambda text, ids: [(each + 1) % 384 for each in ids],
    "right at first": lambda text, ids: [*ids[:1], *[7] * len(ids[1:])],
    "of an end": lambda text, ids: [2] * len(ids),
}


@pytest.mark.parametrize("liar", LIARS)
def test_drafts_of_any_kind_change_no_text(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, liar: str
) -> None:
    expected = run(make_engine(load(target)), asked(), 1)
    texts = [[*each.input_ids.tolist(), *expected.ids[each.row]] for each in asked()]
    original = EagleDrafter.draft

    def draft(drafter: EagleDrafter, step: DraftStep) -> None:
        original(drafter, step)
        for row in step.chosen.tolist():
            text = step.drafts.tokens[row, : int(step.sequences.length[row])].tolist()
            if following := [each[len(text) :] for each in texts if each[: len(text)] == text]:
                ids = LIARS[liar](text, following[0][: step.width])
                step.drafts.ids[row, : len(ids)] = torch.tensor(ids[: step.drafts.most])

    engine = drafting(target, write_head(tmp_path, target, LAYERS))
    with monkeypatch.context() as patch:
        patch.setattr(EagleDrafter, "draft", draft)
        found = run(engine, asked(), 4)
    assert found.ids == expected.ids
    if liar == "right":
        # Of the prompt's step one token was drafted, of each other step three.
        assert found.steps == 1 + 1 + -(-(NEW_TOKENS - 3) // 4)


def test_texts_under_masks_are_those_without_a_drafter(target: Path, tmp_path: Path, watcher: Watcher) -> None:
    """Its drafts are none of rows with masks, whose hints alone bring tokens, but it goes on from every pass."""
    folder = write_head(tmp_path, target, LAYERS)
    expected = run_masked(make_engine(load(target)), 1)
    engine = drafting(target, folder)

    def right(row: int, ids: Sequence[int]) -> Sequence[int]:
        return expected.ids[row][len(ids) :]

    guesses: list[Guess] = [right, nothing, lambda row, ids: [*right(row, ids)[:1], 1, 1]]
    for guess in guesses:
        found = run_masked(engine, 4, guess)
        assert found.ids == expected.ids
    assert run_masked(engine, 4, right).masked_steps == -(-(NEW_TOKENS - 1) // 4)
    # Of the greedy rows, one with masks and one without.
    watcher.seen = [each for each in watcher.seen if each[0][:3] in (MASKED[0][:3], MASKED[FREE][:3])]
    watcher.check(PlainHead(folder, target, LAYERS))


def test_requests_with_adapters(tmp_path: Path) -> None:
    base, adapter = write_base("biased", tmp_path / "base"), tmp_path / "adapter"
    write_adapter(AdapterCase("biased", {"target_modules": ["q_proj", "down_proj", "lm_head"]}), adapter)
    head = write_head(tmp_path / "head", base, (0, 1, 2), drafted=50)
    requests = [replace(request(row, PROMPTS[row]), adapter=row % 2) for row in (0, 1, 2, 4)]
    plain = engine_with(load(base), LIMITS, [adapter])
    expected = run(plain, requests, 1, [adapter])
    engine = engine_with(load(base, drafter=head), LIMITS, [adapter], options=EngineOptions(speculate=3))
    for width in (1, 4):
        assert run(engine, requests, width, [adapter]).ids == expected.ids


def test_what_a_text_copies_from_itself_comes_before_drafts_of_the_head(target: Path, tmp_path: Path) -> None:
    engine = drafting(target, write_head(tmp_path, target, LAYERS))
    # The bias makes every choice the same token, which the head does not know.
    found = run(engine, [request(0, [4] * 9, 12, logit_bias=((4, 100.0),))], 4)
    assert found.ids[0] == [4] * 12
    assert found.steps == 4


def test_a_drafter_takes_memory_of_the_pool(target: Path, tmp_path: Path) -> None:
    with_drafter, without = load(target, drafter=write_head(tmp_path, target, LAYERS)), load(target)
    assert with_drafter.drafter is not None
    assert with_drafter.bytes_per_position > without.bytes_per_position
    assert torch.equal(with_drafter.logits(torch.ones(1, 64)), without.logits(torch.ones(1, 64)))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_request_that_has_ended_reads_nothing_beside_a_prompt(
    deterministic: bool, target: Path, tmp_path: Path
) -> None:
    """Its last window ended it, while the plan after that was on its way; its table ends with its spare slot."""
    head = write_head(tmp_path, target, LAYERS)
    engine = drafting(target, head, deterministic=deterministic)
    first, second = request(0, PROMPTS[0], max_new_tokens=3), request(1, PROMPTS[1])
    ids = run(drafting(target, head, deterministic=deterministic), [first], 1).ids[0]
    alone = engine.step(StepPlan(0, admit=[first], chunks=[Chunk(0, 0, len(PROMPTS[0]))])).result()
    hint = Hint(0, len(PROMPTS[0]) + 1, np.array(ids[1:]))
    window = engine.step(StepPlan(1, decode=[0], widths=[2], hints=[hint])).result()
    assert [*alone.ids, *window.ids] == ids
    late = engine.step(StepPlan(2, admit=[second], chunks=[Chunk(1, 0, len(PROMPTS[1]))], decode=[0])).result()
    assert dict(zip(late.rows, late.counts, strict=True)) == {0: 0, 1: 1}
